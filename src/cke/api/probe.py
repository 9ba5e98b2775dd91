"""Run the probe matrix of a model: one trace a request, and a packet that says what was covered."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from cke.api.evidence import identity_of
from cke.api.facts import run_dtype
from cke.api.model import Model, load
from cke.errors import CkeError, Diagnostic, Note
from cke.errors.files import folder_atomically
from cke.oracles.base import Oracle
from cke.oracles.open import open_oracle
from cke.runtime.capture import Subject, capture_subject
from cke.runtime.drivers import Driver, make_driver
from cke.runtime.gated_writer import GatedWriter
from cke.runtime.records import digest
from cke.runtime.tokens import check_phases
from cke.runtime.trace_reader import TraceFolder, read_trace
from cke.runtime.trace_writer import TraceWriter
from cke.schemas.probe import SCHEMA, VERSION, ProbeCell, ProbePacket, ProbeRun
from cke.schemas.reading import to_json
from cke.xray.diff import diff_traces
from cke.xray.probe import Hit, Probe, Shape, circuit_shape, covered_cells, derive_probes, observed

PACKET = "probe.json"
MAX_TOKENS = 128
SPECIAL_KEYS = (
    "bos_token_id",
    "eos_token_id",
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eos_token_id",
)


def probe_model(
    path: Path,
    out: Path,
    *,
    circuit: str | Path | None = None,
    dtypes: tuple[str, ...] = ("float32", "bfloat16"),
    oracle: str | None = None,
    max_tokens: int = MAX_TOKENS,
) -> ProbePacket:
    """Derive the probes of a model's circuit, run them, and write the packet to the folder `out`.

    With an oracle, each run is compared with it.
    """
    if out.exists():
        message = "expected a folder that does not exist yet, got one that does"
        note = Note("remove it, or choose another folder with --out", label="help")
        raise CkeError(Diagnostic(code="CKE702", file=out.name, message=message, notes=(note,)))
    runs: list[ProbeRun] = []
    cells: list[ProbeCell] = []
    experts: dict[str, set[int]] = {}
    with folder_atomically(out) as folder:
        for dtype in dtypes:
            model = load(path, circuit, dtype)
            check_phases(model.package.phases, ("prefill", "decode"))
            shape = circuit_shape(model.manifest.graph, model.context)
            special = special_tokens(model)
            runner = _Runner(model, oracle, folder)
            hits: dict[str, tuple[Probe, set[Hit]]] = {}
            for probe in derive_probes(shape, special, max_tokens):
                run, side = runner.run(probe)
                runs.append(run)
                hits[run.name] = (probe, observed(side.trace.body.segments, shape.windows))
                _count_experts(side, experts)
            cells += covered_cells(shape, model.dtype, hits, max_tokens)
        packet = _packet(model, shape, special, oracle, runs, cells, experts)
        (folder / PACKET).write_bytes(to_json(packet))
    return packet


def special_tokens(model: Model) -> tuple[int, ...]:
    """Return the tokens that the config names, each once, that the vocabulary holds."""
    found: list[int] = []
    for key in SPECIAL_KEYS:
        value: Any = model.files.config.get(key)
        found += [item for item in (value if isinstance(value, list) else [value])]
    size = model.manifest.graph.dims["V"]
    return tuple(dict.fromkeys(i for i in found if isinstance(i, int) and 0 <= i < size))


class _Runner:
    """The drivers of one model in one dtype, shared by its probes."""

    def __init__(self, model: Model, oracle: str | None, folder: Path) -> None:
        self.model = model
        self.folder = folder
        driver = make_driver("per_layer", model.capturing(("*",)), model.weights)
        self.edges = sum(max(1, len(item.layers)) for item in model.manifest.checkpoints)
        self.subject = Subject(
            production=model.driver("per_layer"),
            evidence=lambda patterns: self._evidence(driver, patterns),
            identity=identity_of(model.files),
        )
        self.oracle: Oracle | None = None
        if oracle is not None:
            self.oracle = open_oracle(oracle, model.files.path, model.dtype)

    def _evidence(self, whole: Driver, patterns: tuple[str, ...]) -> Driver:
        if patterns == ("*",):
            return whole
        return make_driver("per_layer", self.model.capturing(patterns), self.model.weights)

    def run(self, probe: Probe) -> tuple[ProbeRun, TraceFolder]:
        """Run one probe on the subject, and on the oracle when there is one."""
        name = f"{run_dtype(self.model.dtype)}-{probe.name}"
        out = self.folder / "runs" / name
        forwards = max(1, len(probe.request.segments)) + len(probe.request.forced)
        with GatedWriter(out, forwards * self.edges) as writer:
            trace = writer.close(capture_subject(self.subject, probe.request, writer))
        side = read_trace(out)
        run = ProbeRun(
            name=name,
            dtype=self.model.dtype,
            tokens=probe.request.tokens,
            segments=probe.request.segments,
            forced=probe.request.forced,
            first_position=probe.request.first_position,
            trace=f"runs/{name}",
            trace_sha256=trace.body_sha256,
            neutrality=trace.body.neutrality.status,
            records=len(trace.body.records),
        )
        return self._compared(run, probe, side), side

    def _compared(self, run: ProbeRun, probe: Probe, side: TraceFolder) -> ProbeRun:
        if self.oracle is None:
            return run
        out = self.folder / "oracle" / run.name
        with TraceWriter(out) as writer:
            writer.close(self.oracle.capture(probe.request, writer))
        report = diff_traces(side, read_trace(out))
        over = report.first_over_gate
        return msgspec.structs.replace(
            run,
            oracle_trace=f"oracle/{run.name}",
            verdict=report.verdict,
            first_over_gate=None if over is None else report.rows[over].checkpoint_id,
        )


def _count_experts(side: TraceFolder, experts: dict[str, set[int]]) -> None:
    for record in side.trace.body.records:
        if record.checkpoint_id.endswith(".router_ids") and record.tensor_path is not None:
            segment = side.trace.body.segments[record.segment]
            valid = np.asarray(segment.positions) >= 0
            ids = np.asarray(side.array(record, digest))
            rows = ids.transpose([record.axes.index(name) for name in ("B", "T", "A")])[valid]
            found = experts.setdefault(f"layer.{record.layer}", set())
            found.update(int(item) for item in np.unique(rows))


def _packet(
    model: Model,
    shape: Shape,
    special: tuple[int, ...],
    oracle: str | None,
    runs: list[ProbeRun],
    cells: list[ProbeCell],
    experts: dict[str, set[int]],
) -> ProbePacket:
    return ProbePacket(
        schema=SCHEMA,
        version=VERSION,
        circuit=f"{model.manifest.circuit}@{model.manifest.circuit_version}",
        windows=shape.windows,
        boundaries=shape.boundaries,
        learned_positions=shape.learned_positions,
        layers=shape.layers,
        special_tokens=special,
        oracle=oracle,
        runs=tuple(runs),
        cells=tuple(cells),
        experts={name: (len(ids), shape.experts or 0) for name, ids in experts.items()},
    )
