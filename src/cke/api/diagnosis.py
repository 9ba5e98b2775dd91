"""X-Ray on a model or on traces: builds and captures the sides, and hands them to the diagnosis."""

import os
import shutil
import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from cke.api.circuit_patch import with_patch
from cke.api.companions import with_companions
from cke.api.evidence import identity_of, oracle_trace
from cke.api.facts import run_dtype
from cke.api.model import Model, load
from cke.api.packet_bridge import admit_packet, check_weights, export_command
from cke.api.report_files import with_folder, with_progress, write_report
from cke.api.requests import default_request, pixels_request, recorded_request
from cke.errors import CkeError, Diagnostic, MissingInputError, Note
from cke.oracles.facts import measured_version
from cke.oracles.open import open_oracle, oracles_at_hand
from cke.runtime.capture import Subject, capture_subject
from cke.runtime.drivers import Driver, make_driver
from cke.runtime.gated_writer import GatedWriter
from cke.runtime.schedule import CaptureRequest, input_records
from cke.runtime.trace_reader import TraceFolder, read_trace
from cke.runtime.trace_writer import TraceWriter
from cke.runtime.weights.load import Weights
from cke.schemas.diagnosis import Diagnosis
from cke.schemas.manifest import Manifest
from cke.schemas.trace import Identity
from cke.xray.bundle import keep_evidence
from cke.xray.bundle_files import EVIDENCE
from cke.xray.diagnose import diagnose
from cke.xray.sides import Measured
from cke.xray.weights import OracleWeights

LIVE = ("pytorch", "llamacpp", "reference")
MAX_REPORT = 256 << 20


class ModelSubject:
    """A model with its circuit, as the subject of a diagnosis."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.dtype = model.dtype
        self.constants: dict[str, Any] = dict(model.files.config)
        package = model.capturing(("*",))
        assert package.manifest is not None, "a built package has a manifest"
        self.manifest: Manifest = package.manifest
        self._stored = Weights(model.files, self.manifest.bindings)
        self._drivers: dict[tuple[str, ...], Driver] = {}

    @cached_property
    def _identity(self) -> Identity:
        return identity_of(self.model.files)

    def _driver(self, patterns: tuple[str, ...]) -> Driver:
        if patterns not in self._drivers:
            package = self.model.capturing(patterns)
            self._drivers[patterns] = make_driver("per_layer", package, self.model.weights)
        return self._drivers[patterns]

    def capture(self, request: CaptureRequest, out: Path) -> TraceFolder:
        """Run the request, and keep the edges it asks for.

        One program that captures every edge serves every round, so that it is compiled once; only
        the isolated fallback needs programs of its own.
        """
        asked: list[tuple[str, ...]] = []

        def evidence(patterns: tuple[str, ...]) -> Driver:
            asked.append(patterns)
            return self._driver(("*",) if len(asked) == 1 else patterns)

        subject = Subject(
            production=self.model.driver("per_layer"),
            evidence=evidence,
            identity=self._identity,
            context=self.model.context,
        )
        with GatedWriter(out) as writer:
            writer.close(capture_subject(subject, request, writer), input_records(request))
        return read_trace(out)

    def weight(self, semantic: str) -> np.ndarray:
        """Return a semantic weight in the run dtype."""
        return self._stored[semantic]

    def placed(self, phase: str, step: str) -> Mapping[str, Any]:
        """Return the weights of a step as generated code takes them."""
        return self.model.weights[phase][step]


class LiveOracle:
    """transformers, llama.cpp or the interpreter, on a model's own files."""

    def __init__(self, name: str, model: Path, dtype: str) -> None:
        self.name = name
        self.path = model
        self.dtype = "f64" if name == "reference" else dtype
        self._opened: Any = None if name == "reference" else open_oracle(name, model, dtype)
        self.weight_dtypes = self._dtypes()
        self.others: tuple[str, ...] = ()

    def _dtypes(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        if self.name == "pytorch":
            for _, array in self._opened.weights():
                counts[array.dtype.name] = counts.get(array.dtype.name, 0) + 1
        return counts

    def capture(self, request: CaptureRequest, out: Path) -> TraceFolder:
        """Run the request, and keep the edges it asks for."""
        if self._opened is None:
            oracle_trace(self.path, self.name, request, out)
        else:
            with TraceWriter(out) as writer:
                writer.close(self._opened.capture(request, writer), input_records(request))
        return read_trace(out)

    def weights(self) -> OracleWeights | None:
        """Return the loaded weights by checkpoint and operand, where the adapter knows them."""
        return self._weights

    @cached_property
    def _weights(self) -> OracleWeights | None:
        found = getattr(self._opened, "module_weights", None)
        return None if found is None else found()

    def measured(self) -> Measured:
        """Return the installed version, the loaded dtypes, and the tables of embeddings."""
        loaded = self._weights or {}
        tables = (key for key in loaded if key[1] == "weight" and "embedding" in key[0])
        return Measured(
            version=measured_version(self.name),
            loaded=self.weight_dtypes or None,
            tables=tuple(loaded[key] for key in tables),
        )


class RecordedOracle:
    """A trace folder as the oracle: what it holds is all there is."""

    def __init__(self, folder: Path) -> None:
        self.trace = read_trace(folder)
        producer = self.trace.trace.body.producer
        self.name = producer.name
        self.dtype = producer.dtype
        self.weight_dtypes = dict(producer.weight_dtypes)
        self.others: tuple[str, ...] = ()

    def capture(self, request: CaptureRequest, out: Path) -> TraceFolder:
        """Return the trace, linked at `out`; the edges asked for are a subset of what it holds."""
        if not out.exists():
            shutil.copytree(self.trace.folder, out, copy_function=_linked)
        return self.trace

    def weights(self) -> OracleWeights | None:
        """Return nothing: a trace holds no weights."""
        return None

    def measured(self) -> Measured:
        """Return nothing: its process is gone."""
        return Measured()


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def xray(
    model: str | Path | Model,
    *,
    oracle: str | Path,
    out: str | Path,
    tokens: tuple[tuple[int, ...], ...] | None = None,
    pixels: str | Path | None = None,
    circuit: str | Path | None = None,
    dtype: str = "float32",
    forced: tuple[tuple[int, ...], ...] = (),
    segments: tuple[int, ...] = (),
    oracle_model: str | Path | None = None,
    second: tuple[Diagnosis, str] | None = None,
    packet: str | Path | None = None,
    recorded: str | Path | None = None,
    reproduce: str | None = None,
    persistent: bool = False,
    since: tuple[Diagnosis, str] | None = None,
    say: Any = lambda text: None,
) -> Diagnosis:
    """Diagnose a model against one pinned oracle; report and captures are written under `out`.

    `oracle` is `pytorch`, `llamacpp`, `reference`, or a trace folder. `tokens` are rows of IDs;
    without them a default packet of the vocabulary is used. `pixels` is the .npy file of what an
    encoder of images is given. `oracle_model` is what the oracle
    loads, when that is not the subject's own files. `second` is an earlier report with its sha256.
    `persistent` also compares the decode steps with a full replay of them.
    `since` is an earlier report with its sha256: its failing block is looked at first, and the
    report says how the first divergence moved.
    `packet` is the packet.json of an attention packet of the same call, as evidence. `recorded` is
    a trace of the model, which then is not run: the oracle answers for its tokens and forwards.
    """
    measured = None if packet is None else admit_packet(Path(packet))
    loaded = model if isinstance(model, Model) else load(model, circuit, dtype)
    circuit = loaded.circuit
    path = Path(str(model)) if not isinstance(model, Model) else loaded.files.path
    if measured is not None:
        check_weights(measured, loaded)
    subject = ModelSubject(loaded)
    if recorded is not None:
        from cke.api.recorded_subject import RecordedSubject

        subject = RecordedSubject(loaded, Path(recorded))
    side = opened_side(oracle, oracle_model or path, run_dtype(dtype))
    known = getattr(subject, "trace", None) or getattr(side, "trace", None)
    given = pixels_request(loaded.manifest, pixels) if pixels is not None else None
    if tokens is not None:
        given = CaptureRequest(tokens=tokens)
    if known is not None and (given is None or recorded is not None):
        request = recorded_request(known)
    else:
        made = default_request(loaded.manifest) if given is None else given
        request = msgspec.structs.replace(made, segments=segments, forced=forced)
    longest = max(map(len, request.tokens), default=0) + len(request.forced)
    side.others = oracles_at_hand(Path(oracle_model or path), longest)
    rounds = Path(out) / "rounds"
    shutil.rmtree(rounds, ignore_errors=True)
    start = time.monotonic()
    report = diagnose(
        subject,
        side,
        request,
        rounds,
        reproduce=reproduce or f"cke xray --model {path} --oracle {oracle} --out {out}",
        second=None if second is None else second[0],
        second_sha256=None if second is None else second[1],
        persistent=persistent,
        then=lambda case, report: with_companions(case, report, Path(out)),
        packet=measured,
        resume=None if since is None else since[0],
        say=say,
    )
    flags = {"model": str(path), "circuit": None if circuit is None else str(circuit)}
    flags["dtype"] = {"bf16": "bfloat16"}.get(loaded.dtype)
    command = export_command(report, subject.manifest, request, flags, Path(out))
    if command is not None and measured is None:
        report = msgspec.structs.replace(report, packet_export=command)
    if since is not None:
        report = with_progress(report, *since)
    report = with_folder(report, circuit)
    report = with_patch(report, subject.manifest, circuit, loaded.files, subject.dtype)
    shutil.rmtree(Path(out) / EVIDENCE, ignore_errors=True)
    keep_evidence(Path(out), subject, report)
    write_report(report, Path(out), time.monotonic() - start)
    return report


def opened_side(
    oracle: str | Path, model: str | Path | None, dtype: str
) -> LiveOracle | RecordedOracle:
    """Return an oracle by name on a model, or the trace in a folder; what is neither is CKE720."""
    if str(oracle) in LIVE and model is not None:
        return LiveOracle(str(oracle), Path(model), dtype)
    if Path(oracle).is_dir():
        return RecordedOracle(Path(oracle))
    needs = ", and with a live one what it loads: `--oracle-model`" if model is None else ""
    raise MissingInputError(
        Diagnostic(
            code="CKE720",
            message=f"expected an oracle of `pytorch`, `llamacpp`, `reference`, or the folder "
            f"of a trace{needs}, got `{oracle}`",
            notes=(Note("check the value of --oracle", label="help"),),
        )
    )


def read_second(path: Path) -> tuple[Diagnosis, str]:
    """Return an earlier report and its sha256; a file that is not one is CKE730."""
    from cke.schemas.diagnosis import SCHEMA, Document
    from cke.schemas.reading import Limits, canonical_sha256, read_bytes

    try:
        raw = read_bytes(path, Limits(max_bytes=MAX_REPORT))
        document = msgspec.json.decode(raw, type=Document)
        stated = msgspec.json.decode(raw)["body"]
    except (OSError, msgspec.DecodeError) as error:
        raise CkeError(
            Diagnostic(
                code="CKE730",
                file=path.name,
                message=f"expected an X-Ray report, got a file that is none: {error}",
                notes=(Note("give the `report.json` of an earlier run", label="help"),),
            )
        ) from None
    if document.schema != SCHEMA or canonical_sha256(stated) != document.body_sha256:
        raise CkeError(
            Diagnostic(
                code="CKE730",
                file=path.name,
                message=f"expected an unedited report of `{SCHEMA}`, got `{document.schema}` with "
                "another digest",
                notes=(Note("give the `report.json` of an earlier run", label="help"),),
            )
        )
    return document.body, document.body_sha256
