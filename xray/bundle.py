"""A bug bundle: a report with the evidence of its finding, to be judged again without the model.

A diagnosis keeps the weights of the ops it judged; packing adds what both sides captured of the
block they are in, and of what feeds it. Judging again runs kernel and definition on the oracle's
inputs as the diagnosis did.
"""

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np

from cke.errors import CkeError, Diagnostic, MissingInputError, Note
from cke.errors.files import write_atomically
from cke.runtime.records import digest
from cke.runtime.trace_reader import read_trace
from cke.runtime.trace_writer import TraceWriter
from cke.schemas.bundle import SCHEMA, VERSION, Evidence, KeptWeight
from cke.schemas.diagnosis import Diagnosis, Divergence
from cke.schemas.graph_ir import Op
from cke.schemas.manifest import Manifest
from cke.schemas.reading import to_json
from cke.xray.graph import ProgramGraph, Site
from cke.xray.sides import SubjectSide

EVIDENCE = "evidence"
FILES = ("report.json", "report.md", "drift.svg", "fix.patch", "run.json")
KEPT = ("evidence.json", "manifest.json", "weights.npz")
TRACES = tuple(
    f"{side}/{name}"
    for side in ("subject", "oracle")
    for name in ("trace.json", "tensors.safetensors")
)
MAX_WEIGHT = 256 << 20
"""A larger weight stays out of the evidence; judging again then says that it is missing."""
Array = np.ndarray[Any, Any]


def keep_evidence(folder: Path, subject: SubjectSide, report: Diagnosis) -> None:
    """Write the weights of the judged ops, the manifest and the config under the report."""
    found = report.first_divergence
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
    target = folder / EVIDENCE
    target.mkdir(parents=True, exist_ok=True)
    evidence = Evidence(
        schema=SCHEMA, version=VERSION, constants=subject.constants, weights=tuple(kept)
    )
    write_atomically(target / "evidence.json", to_json(evidence))
    write_atomically(target / "manifest.json", msgspec.json.encode(subject.manifest))
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
    """Write the bundle of a report folder; CKE732 when it holds no evidence."""
    found = report.first_divergence
    kept = folder / EVIDENCE
    if found is None or not (kept / "manifest.json").is_file():
        raise CkeError(
            Diagnostic(
                code="CKE732",
                file=folder.name,
                message="expected the report of a finding about an op, got one without evidence",
                notes=(Note("a pass has nothing to replay, nor has a stop before numbers"),),
            )
        )
    manifest = read_manifest(kept / "manifest.json")
    keys = _keys(_graph(manifest, found.phase), found)
    partial = output.with_name(f".{output.name}.partial")
    partial.parent.mkdir(parents=True, exist_ok=True)
    try:
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as bundle:
            for name in FILES:
                if (folder / name).is_file():
                    bundle.write(folder / name, name)
            for name in KEPT:
                bundle.write(kept / name, f"{EVIDENCE}/{name}")
            for side in ("subject", "oracle"):
                _pack_side(bundle, folder, side, keys, found.segment or 0)
            bundle.writestr("README.md", _readme(output.name, report))
        partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)


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


def _pack_side(bundle: zipfile.ZipFile, folder: Path, side: str, keys: set[Any], last: int) -> None:
    rounds = sorted((folder / "rounds").glob(f"round-*/{side}"), key=_number, reverse=True)
    traces = [read_trace(item) for item in rounds]
    target = folder / EVIDENCE / f"{side}.packing"
    seen: set[Any] = set()
    with TraceWriter(target) as writer:
        for trace in traces:
            for record in trace.trace.body.records:
                key = (record.segment, record.checkpoint_id, record.role)
                if key in seen or record.segment > last or key[1:] not in keys:
                    continue
                if record.tensor_path is not None:
                    seen.add(key)
                    writer.add(record, trace.array(record, digest))
        writer.close(traces[0].trace.body)
    for name in ("trace.json", "tensors.safetensors"):
        bundle.write(target / name, f"{EVIDENCE}/{side}/{name}")
        (target / name).unlink()
    target.rmdir()


def _number(folder: Path) -> int:
    return int(folder.parent.name.removeprefix("round-"))


def _readme(name: str, report: Diagnosis) -> str:
    return (
        "# A bug bundle of `cke xray`\n\n"
        "`report.md` says what was found. Judge the op again, without the model:\n\n"
        f"    cke xray --replay {name}\n\n"
        f"With the model, the whole diagnosis is:\n\n    {report.reproduce}\n"
    )


def read_manifest(path: Path) -> Manifest:
    """Return a manifest; kernels that it names are plain names of the registry, or it is CKE733."""
    manifest: Manifest = _decoded(path, Manifest)
    for program in manifest.calls.programs:
        for function in program.functions:
            for call in function.calls:
                if not (call.kernel_id.isidentifier() and call.function.isidentifier()):
                    raise malformed(path, f"`{call.kernel_id}` is no kernel's name")
    return manifest


def read_evidence(path: Path) -> Evidence:
    """Return the index of the kept weights."""
    evidence: Evidence = _decoded(path, Evidence)
    return evidence


def _decoded(path: Path, kind: Any) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise malformed(path, str(error).lower()) from None


def malformed(path: Path, why: str) -> CkeError:
    """Return the error of a bundle that cannot be used."""
    return CkeError(
        Diagnostic(
            code="CKE733",
            file=path.name,
            message=f"expected a bundle of `cke xray bundle`, got one that is malformed: {why}",
            notes=(Note("pack the report again", label="help"),),
        )
    )


def unpack(bundle: Path, folder: Path) -> None:
    """Extract the known files of a bundle, and no other, into a folder."""
    wanted = {*FILES, *(f"{EVIDENCE}/{name}" for name in (*KEPT, *TRACES))}
    try:
        with zipfile.ZipFile(bundle) as archive:
            names = wanted & set(archive.namelist())
            absent = {"report.json", *(f"{EVIDENCE}/{name}" for name in (*KEPT, *TRACES))} - names
            if absent:
                raise malformed(bundle, f"no `{min(absent)}`")
            for name in sorted(names):
                archive.extract(name, folder)
    except FileNotFoundError:
        raise MissingInputError(
            Diagnostic(
                code="CKE731",
                file=str(bundle),
                message="expected the bundle, got no file",
                notes=(Note("check the path", label="help"),),
            )
        ) from None
    except zipfile.BadZipFile as error:
        raise malformed(bundle, str(error).lower()) from None


class KeptWeights:
    """The weights of a bundle, as a replay asks for them."""

    def __init__(self, folder: Path) -> None:
        evidence = read_evidence(folder / "evidence.json")
        self.constants = evidence.constants
        self.absent = tuple(item.name for item in evidence.weights if item.key is None)
        self._semantic: dict[str, Array] = {}
        self._placed: dict[tuple[str | None, str | None], dict[str, Array]] = {}
        with np.load(folder / "weights.npz", allow_pickle=False) as arrays:
            for item in evidence.weights:
                if item.key is None:
                    continue
                array = arrays[item.key].view(_dtype(item.dtype)).reshape(item.shape)
                if item.kind == "semantic":
                    self._semantic[item.name] = array
                else:
                    self._placed.setdefault((item.phase, item.step), {})[item.name] = array

    def weight(self, semantic: str) -> Array:
        """Return a semantic weight; one that was not kept cannot be replayed."""
        if semantic not in self._semantic:
            raise _not_kept(semantic)
        return self._semantic[semantic]

    def placed(self, phase: str, step: str) -> Mapping[str, Any]:
        """Return the weights of a step as its kernels take them."""
        return _Placed(self._placed.get((phase, step), {}))


class _Placed(dict[str, Array]):
    def __missing__(self, name: str) -> Array:
        raise _not_kept(name)


def _not_kept(name: str) -> Exception:
    from cke.xray.replay import NotReplayable

    return NotReplayable(f"the weight `{name}`")


def _dtype(name: str) -> Any:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)
