"""Oracles whose statements are measured: live ones after their run, dumps while they are read."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cke.api.build import built_package
from cke.api.evidence import ORACLE_DTYPES, oracle_trace
from cke.api.facts import run_dtype
from cke.errors import CkeError, Diagnostic, Note
from cke.oracles.base import Array
from cke.oracles.debugger import DebuggerDump, Printed, is_debugger_dump, read_debugger
from cke.oracles.dumps import Dump
from cke.oracles.facts import Facts, check_facts, loaded_dtypes, measured_version
from cke.oracles.layout import config_sizes
from cke.oracles.mapping import Entry, check_all_used, expand, read_mapping
from cke.oracles.points import table_for
from cke.oracles.recorded import DumpOracle, Known, named_axes, other_tokens
from cke.runtime.records import WIRE_DTYPES, join_id, split_id
from cke.runtime.schedule import CaptureRequest, input_records, plan_segments
from cke.runtime.trace_reader import read_trace
from cke.runtime.trace_writer import TraceWriter
from cke.runtime.weights.files import ModelFiles, open_model
from cke.runtime.weights.load import Weights
from cke.schemas.manifest import Manifest
from cke.schemas.oracle_mapping import DeclaredProducer
from cke.schemas.trace import Record, Trace


def measured_oracle(
    model: Path, oracle: str, request: CaptureRequest, out: Path, *, dtype: str = "float32"
) -> tuple[Trace, Facts]:
    """Run an oracle, write its trace, and measure what it declares of itself."""
    from cke.oracles.open import open_oracle

    if oracle == "reference":
        trace = oracle_trace(model, oracle, request, out, dtype=dtype)
        return trace, check_facts(read_trace(out))
    opened = open_oracle(oracle, model, ORACLE_DTYPES.get(dtype) or run_dtype(dtype))
    with TraceWriter(out) as writer:
        trace = writer.close(opened.capture(request, writer), input_records(request))
    live = oracle == "pytorch"
    return trace, check_facts(
        read_trace(out),
        tables=[array for _, array in opened.weights() if array.ndim == 2],
        version=None if opened.name == "recorded" else measured_version(opened.name),
        loaded=loaded_dtypes(opened.weights()) if live else None,
    )


def import_dump(
    dump: Path,
    model: Path,
    request: CaptureRequest,
    out: Path,
    *,
    mapping: Path | None = None,
    circuit: str | Path | None = None,
) -> tuple[Trace, Facts]:
    """Write a dump as an oracle's trace to `out`, and measure what was declared of it.

    A dump of transformers' model debugger needs no mapping; any other folder does (CKE740).
    """
    files = open_model(model)
    package = built_package(files, circuit, "f32")
    assert package.manifest is not None, "a built package has a manifest"
    known = known_axes(package.manifest)
    folder = Dump(dump)
    if mapping is not None:
        declared = read_mapping(mapping)
        entries = expand(declared, mapping)
        check_all_used(folder.names(), entries, declared.ignore)
        opened = DumpOracle(folder, entries, declared.producer, declared.sizes, known)
        printed: tuple[Printed, ...] = ()
    elif is_debugger_dump(dump):
        opened, printed = _debugger(folder, files, request, known)
    else:
        raise CkeError(
            Diagnostic(
                code="CKE740",
                file=dump.name,
                message="expected a mapping file for this dump, got none",
                notes=(Note("write one and give it with --mapping", label="help"),),
            )
        )
    with TraceWriter(out) as writer:
        body = opened.capture(request, writer)
        for item in printed:
            writer.note(_summary(item, request, opened.sizes, known))
        trace = writer.close(body, input_records(request))
    tables = lookup_tables(files, package.manifest)
    return trace, check_facts(read_trace(out), tables=tables)


def known_axes(manifest: Manifest) -> Known:
    """Return the axes of every checkpoint of a circuit, by id and role."""
    return {
        (join_id(item.checkpoint.name, layer), item.checkpoint.role): item.type.axes
        for item in manifest.checkpoints
        for layer in item.layers or (None,)
    }


def lookup_tables(files: ModelFiles, manifest: Manifest) -> list[Array]:
    """Return the weights that the circuit looks tokens and positions up in."""
    program = manifest.graph.programs[0]
    functions = {function.name: function for function in program.functions}
    names = [
        step.weights[weight]
        for step in program.steps
        for op in functions[step.function].ops
        if op.operator == "embedding"
        for weight in op.weights
        if weight is not None
    ]
    weights = Weights(files, manifest.bindings, "f32")
    return [np.asarray(weights[name]) for name in dict.fromkeys(names)]


def _debugger(
    folder: Dump, files: ModelFiles, request: CaptureRequest, known: Known
) -> tuple[DumpOracle, tuple[Printed, ...]]:
    found = read_debugger(folder.folder, table_for(str(files.config.get("model_type"))))
    _check_tokens(found, folder, request)
    producer = DeclaredProducer(
        name="pytorch",
        version="unknown",
        dtype=found.dtype,
        settings={"dump": "model_addition_debugger_context", "model_class": found.model_class},
    )
    entries = [item for item in found.entries if (item.checkpoint_id, item.role) in known]
    opened = DumpOracle(folder, entries, producer, config_sizes(files.config), known)
    kept = (p for p in found.printed if (p.entry.checkpoint_id, p.entry.role) in known)
    return opened, tuple(kept)


def _check_tokens(found: DebuggerDump, folder: Dump, request: CaptureRequest) -> None:
    """Compare the tokens that the dump shows with those of the request; CKE747 when they differ."""
    wanted = [token for row in plan_segments(request)[0].tokens for token in row]
    shown: list[int] | None = None
    if isinstance(found.tokens, Entry):
        array: Any = folder.tensor(found.tokens.file, found.tokens.key)
        shown = [int(token) for token in array.reshape(-1)]
    elif isinstance(found.tokens, str) and "..." not in found.tokens:
        shown = [int(token) for token in re.findall(r"\d+", found.tokens)]
    if shown is not None and shown != wanted:
        raise other_tokens(folder.folder.name)


def _summary(
    item: Printed, request: CaptureRequest, sizes: Mapping[str, int], known: Known
) -> Record:
    segment = plan_segments(request)[0]
    axes, shape = named_axes(item.entry, segment, item.shape, sizes, known)
    name, layer = split_id(item.entry.checkpoint_id)
    return Record(
        checkpoint_id=join_id(name, layer),
        version=1,
        role=item.entry.role,
        layer=layer,
        phase=segment.phase,
        segment=segment.index,
        tensor_path=None,
        dtype=WIRE_DTYPES[item.dtype],
        shape=shape,
        axes=axes,
        sha256=None,
        summary=item.summary,
        derivation=item.entry.derivation,
    )
