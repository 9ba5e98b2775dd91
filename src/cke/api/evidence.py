"""Traces of both sides: a subject with its neutrality gate, an oracle, each to a folder.

It builds the packages that capture, and hands drivers and models to the halves that know neither
the compiler nor each other.
"""

import hashlib
from pathlib import Path

import msgspec

from cke.api.build import built_package
from cke.api.facts import run_dtype
from cke.api.model import Model
from cke.oracles.open import open_oracle
from cke.runtime.capture import Subject, capture_subject
from cke.runtime.drivers import Driver, make_driver
from cke.runtime.edges import select_edges
from cke.runtime.gated_writer import GatedWriter
from cke.runtime.schedule import CaptureRequest, input_records
from cke.runtime.trace_writer import TraceWriter
from cke.runtime.weights.file_digest import file_sha256
from cke.runtime.weights.files import ModelFiles
from cke.schemas.trace import Identity, Trace

ORACLE_DTYPES = {"float16": "f16", "f16": "f16"}


def subject_trace(model: Model, request: CaptureRequest, out: Path) -> Trace:
    """Capture `request` on the model and write its trace to the folder `out`.

    Edges of the request may be ranges of stops, such as `10:20`. What changed a bit goes to
    `OUT.rejected`.
    """
    if request.edges is not None:
        chosen = select_edges(model.package, request.edges)
        request = msgspec.structs.replace(request, edges=chosen)
    drivers: dict[tuple[str, ...], Driver] = {}

    def evidence(patterns: tuple[str, ...]) -> Driver:
        if patterns not in drivers:
            drivers[patterns] = make_driver("per_layer", model.capturing(patterns), model.weights)
        return drivers[patterns]

    subject = Subject(
        production=model.driver("per_layer"),
        evidence=evidence,
        identity=identity_of(model.files),
        context=model.context,
    )
    forwards = max(1, len(request.segments)) + len(request.forced)
    with GatedWriter(out, forwards * _edges(model)) as writer:
        return writer.close(capture_subject(subject, request, writer), input_records(request))


def _edges(model: Model) -> int:
    return sum(max(1, len(item.layers)) for item in model.manifest.checkpoints)


def oracle_trace(
    model: Path, oracle: str, request: CaptureRequest, out: Path, *, dtype: str = "float32"
) -> Trace:
    """Run an oracle on the request and write its trace to the folder `out`."""
    short = ORACLE_DTYPES.get(dtype) or run_dtype(dtype)
    if oracle == "reference":
        return _reference_trace(model, request, out)
    opened = open_oracle(oracle, model, short)
    with TraceWriter(out) as writer:
        return writer.close(opened.capture(request, writer), input_records(request))


def _reference_trace(path: Path, request: CaptureRequest, out: Path) -> Trace:
    from cke.oracles.reference_trace import ReferenceOracle
    from cke.runtime.weights.files import open_model
    from cke.runtime.weights.load import Weights

    files = open_model(path)
    package = built_package(files, None, "f32")
    assert package.manifest is not None, "a built package has a manifest"
    weights = Weights(files, package.manifest.bindings, "f64")
    oracle = ReferenceOracle(package.manifest, weights, identity_of(files))
    with TraceWriter(out) as writer:
        return writer.close(oracle.capture(request, writer), input_records(request))


def identity_of(files: ModelFiles) -> Identity:
    """Return what is known of a model: the digest of its weights, and its family."""
    config = files.config
    named = config.get("model_type") or config.get("general.architecture")
    return Identity(
        model_sha256=_weights_sha256(files),
        family=named if isinstance(named, str) else None,
        circuit=None,
        manifest_sha256=None,
        tokens_sha256="",
    )


def _weights_sha256(files: ModelFiles) -> str:
    """Return the digest of the digests of the weights files, in the order of their names."""
    stamps = {tensor.file: tensor.stamp for tensor in files.located.values()}
    found = [file_sha256(file, stamps[file]) for file in sorted(stamps)]
    return found[0] if len(found) == 1 else hashlib.sha256("".join(found).encode()).hexdigest()
