"""A bug bundle: a report with the evidence of its finding, to be judged again without the model.

A diagnosis keeps the weights of the ops it judged; packing adds what both sides captured of the
block they are in, and of what feeds it. Judging again runs kernel and definition on the oracle's
inputs as the diagnosis did. A report without such an op (a pass, a stop before numbers) is packed
with the metadata of its captures, which are joined again.
"""

import shlex
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from cke.errors import CkeError, Diagnostic, Note
from cke.errors.files import write_atomically
from cke.runtime.records import digest
from cke.runtime.trace_reader import read_trace
from cke.runtime.trace_writer import TraceWriter
from cke.schemas.bundle import INDEX as INDEX_SCHEMA
from cke.schemas.bundle import SCHEMA, VERSION, Evidence, Index, KeptWeight
from cke.schemas.diagnosis import Diagnosis, Divergence
from cke.schemas.graph_ir import Op
from cke.schemas.manifest import Manifest
from cke.schemas.reading import to_json
from cke.xray.bundle_files import EVIDENCE, FILES, INDEX, MANIFEST, MAX_WEIGHT, WEIGHTS, file_digest
from cke.xray.bundle_reader import read_manifest
from cke.xray.graph import ProgramGraph, Site
from cke.xray.sides import SubjectSide

Array = np.ndarray[Any, Any]


def keep_evidence(folder: Path, subject: SubjectSide, report: Diagnosis) -> None:
    """Write the manifest, and for a finding about an op its weights and the config."""
    found = report.first_divergence
    target = folder / EVIDENCE
    target.mkdir(parents=True, exist_ok=True)
    write_atomically(target / "manifest.json", msgspec.json.encode(subject.manifest))
    if found is None or found.op is None or found.checkpoint_id is None:
        return
    graph = _graph(subject.manifest, found.phase)
    arrays: dict[str, Array] = {}
    kept: list[KeptWeight] = []
    for kind, name, step, array in _weights(graph, subject, found):
        small = array.nbytes <= MAX_WEIGHT
        key = f"w{len(kept)}" if small else None
        if key is not None:
            arrays[key] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        kept.append(
            KeptWeight(
                kind=kind,
                name=name,
                phase=None if step is None else graph.phase,
                step=step,
                dtype=array.dtype.name,
                shape=array.shape,
                key=key,
            )
        )
    evidence = Evidence(
        schema=SCHEMA, version=VERSION, constants=subject.constants, weights=tuple(kept)
    )
    write_atomically(target / "evidence.json", to_json(evidence))
    np.savez(target / "weights.npz", **arrays)  # type: ignore[arg-type]


def _graph(manifest: Manifest, phase: str | None) -> ProgramGraph:
    phases = [program.phase for program in manifest.graph.programs]
    return ProgramGraph(manifest, phase if phase in phases else phases[0])


def judged_ops(graph: ProgramGraph, found: Divergence) -> Iterator[tuple[int, Op]]:
    """Yield the ops that a finding judged: those of its replay, else the one it names."""
    names = set(found.replay.ops) if found.replay is not None else set()
    site = graph.site_of(found.checkpoint_id or "", found.role)
    for index, op in graph.ops():
        own = site is not None and (index, op.id) == (site.step, found.op)
        if own or f"{graph.step_key(index)}.{op.id}" in names:
            yield index, op


def _weights(
    graph: ProgramGraph, subject: SubjectSide, found: Divergence
) -> Iterator[tuple[Any, str, str | None, Array]]:
    seen: set[tuple[str | None, str]] = set()
    for index, op in judged_ops(graph, found):
        step = graph.steps[index]
        for local in (*op.weights, *op.inputs):
            name = step.weights.get(local or "")
            if name is not None and (None, name) not in seen:
                seen.add((None, name))
                yield "semantic", name, None, np.asarray(subject.weight(name))
        key = graph.step_key(index)
        for argument in graph.call(Site(index, op.results[0].name)).arguments:
            name = argument.name
            if argument.source == "weight" and name is not None and (key, name) not in seen:
                seen.add((key, name))
                yield "placed", name, key, np.asarray(subject.placed(graph.phase, key)[name])


def pack(folder: Path, output: Path, report: Diagnosis) -> None:
    """Write the bundle of a report folder; CKE732 when its captures are gone."""
    found = report.first_divergence
    kept = folder / EVIDENCE
    whole = found is not None and (kept / "evidence.json").is_file()
    rounds = sorted((folder / "rounds").glob("round-*"), key=_number)
    rounds = [item for item in rounds if (item / "subject").is_dir() and (item / "oracle").is_dir()]
    if not (kept / "manifest.json").is_file() or (report.rounds and not rounds):
        raise CkeError(
            Diagnostic(
                code="CKE732",
                file=folder.name,
                message="expected the folder of a report with its captures, got one without them",
                notes=(Note("run `cke xray` again with `--out`", label="help"),),
            )
        )
    keys: set[Any] = set()
    if whole and found is not None:
        manifest = read_manifest(kept / "manifest.json")
        keys = _keys(_graph(manifest, found.phase), found)
    partial = output.with_name(f".{output.name}.partial")
    partial.parent.mkdir(parents=True, exist_ok=True)
    sides = ("subject", "oracle") if rounds else ()
    try:
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as bundle:
            packer = _Packer(bundle)
            for name in (*FILES, MANIFEST, *(WEIGHTS if whole else ())):
                if (folder / name).is_file():
                    packer.add(folder / name, name)
            for side in sides:
                last = (found.segment or 0) if found is not None else 0
                wanted = (keys, last) if whole else None
                _pack_side(packer, folder, [item / side for item in rounds[::-1]], wanted)
            packer.close("op" if whole else "metadata", _readme(output.name, report))
        partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)


class _Packer:
    """A bundle under way, with the digest of every file that it holds."""

    def __init__(self, bundle: zipfile.ZipFile) -> None:
        self.bundle = bundle
        self.files: dict[str, str] = {}

    def add(self, path: Path, name: str) -> None:
        """Add a file under its name."""
        self.bundle.write(path, name)
        self.files[name] = file_digest(path)

    def close(self, evidence: Any, readme: str) -> None:
        """Add the index, and the text for a person."""
        index = Index(schema=INDEX_SCHEMA, version=VERSION, evidence=evidence, files=self.files)
        self.bundle.writestr(INDEX, to_json(index))
        self.bundle.writestr("README.md", readme)


def _keys(graph: ProgramGraph, found: Divergence) -> set[tuple[str, str | None]]:
    """Return the checkpoints of the judged blocks, and of what feeds them."""
    steps = {index for index, _ in judged_ops(graph, found)}
    sites = [
        Site(index, edge.name)
        for index in steps
        for op in graph.function(index).ops
        for edge in op.results
    ]
    sites += [
        Site(index, parameter.name)
        for index in steps
        for parameter in graph.function(index).parameters
    ]
    return {(p.checkpoint_id, p.role) for site in sites for p in graph.points_of(site)}


def _pack_side(packer: _Packer, folder: Path, rounds: list[Path], wanted: Any) -> None:
    """Add a side's trace: the values wanted of every round, or the last round's metadata."""
    side = rounds[0].name
    traces = [read_trace(item) for item in (rounds if wanted else rounds[:1])]
    target = folder / EVIDENCE / f"{side}.packing"
    shutil.rmtree(target, ignore_errors=True)
    seen: set[Any] = set()
    with TraceWriter(target) as writer:
        for trace in traces:
            for record in trace.trace.body.records:
                key = (record.segment, record.checkpoint_id, record.role)
                if wanted is None:
                    writer.note(record)
                    continue
                keys, last = wanted
                if key in seen or record.segment > last or key[1:] not in keys:
                    continue
                if record.tensor_path is not None:
                    seen.add(key)
                    writer.add(record, trace.array(record, digest))
        writer.close(traces[0].trace.body)
    for path in sorted(target.iterdir()):
        packer.add(path, f"{EVIDENCE}/{side}/{path.name}")
    shutil.rmtree(target)


def _number(folder: Path) -> int:
    return int(folder.name.removeprefix("round-"))


def _readme(name: str, report: Diagnosis) -> str:
    return (
        "# A bug bundle of `cke xray`\n\n"
        "`report.md` says what was found. Judge the op again, without the model:\n\n"
        f"    cke xray --replay {shlex.quote(name)}\n\n"
        f"With the model, the whole diagnosis is:\n\n    {report.reproduce}\n"
    )
