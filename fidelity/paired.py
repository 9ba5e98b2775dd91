"""The paired intervention on a routed candidate: QxQ, its own routing, and BxQ, the teacher's.

Six runs over the identical tokens: two natural, two with the first natural run's own ids forced,
two with the teacher's. Their exact agreement is the evidence; what differs is kept as a
diagnostic and never excused.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from cke.errors.files import write_atomically
from cke.fidelity.capture_reader import Capture
from cke.fidelity.digests import arrays_sha256, file_sha256
from cke.fidelity.head import flat_weights
from cke.fidelity.refusal import refuse
from cke.fidelity.routing import (
    KERNEL,
    METHOD,
    Ids,
    RouteControl,
    divergence,
    routed_layers,
    trace_problems,
)
from cke.fidelity.score import ARRAYS, matching_contexts, row_scores
from cke.fidelity.statistics import Row, mean, strata_table
from cke.fidelity.subject import Subject
from cke.fidelity.suite import Context, pretty
from cke.fidelity.suite_reader import Suite
from cke.schemas.reading import canonical_sha256, read_json

PROTOCOL_VERSION = 5
ROUTING_MODE = "teacher_ids_student_weights"
TRACE = "routing-trace.json"
RUNS = ("natural", "forced_natural", "bxq")
REPEATS = 2


def capture_trace(reference: Subject, capture: Capture, suite: Suite, out: Path) -> dict[str, Any]:
    """Write the teacher's ordered expert ids of every context and routed layer; its manifest."""
    contexts = matching_contexts(capture, suite)
    facts = reference.identity.routing
    if facts is None:
        refuse("CKE881", "the reference routes to no experts")
    if reference.identity.weights_sha256 != capture.manifest["reference_weights_sha256"]:
        refuse("CKE881", "the capture is of another reference")
    control = RouteControl()
    teacher = reference.with_functions({"route": control})
    for row, item in enumerate(contexts):
        control.begin()
        teacher.hidden(np.array(item.token_ids, np.int32))
        content = save({"ids": control.ids()})
        write_atomically(out / "rows" / f"row-{row:04d}.safetensors", content)
    layers = routed_layers(reference.package)
    manifest = {
        "protocol_version": PROTOCOL_VERSION,
        "token_sha256": capture.manifest["token_sha256"],
        "rows": len(contexts),
        "num_layers": len(layers),
        "layer_map": layers,
        **facts,
        "routing_method": METHOD,
        "reference_config_sha256": reference.identity.config_sha256,
        "reference_weights_sha256": reference.identity.weights_sha256,
        "capture_manifest_sha256": capture.manifest_sha256,
        "runtime": reference.runtime,
        "file_hashes": {
            path.relative_to(out).as_posix(): file_sha256(path)
            for path in sorted(out.joinpath("rows").iterdir())
        },
    }
    write_atomically(out / TRACE, pretty(manifest))
    return manifest


def read_trace(
    folder: Path, capture: Capture, subject: Subject
) -> tuple[dict[str, Any], list[Ids]]:
    """Return a trace and its ids; CKE881 when it is stale, unbound, or cannot be replayed."""
    manifest = read_json(folder / TRACE)
    if problems := binding_problems(manifest, capture, subject):
        refuse("CKE881", problems, file=folder.name)
    ids = []
    length = capture.manifest["context_length"]
    for name, expected in sorted(manifest["file_hashes"].items()):
        path = folder / name
        if not path.is_file() or file_sha256(path) != expected:
            problems.append(f"`{name}` is not the file that the trace names")
            continue
        ids.append(load(path.read_bytes())["ids"])
        problems += trace_problems(ids[-1], manifest["num_layers"], length, manifest)
    if len(ids) != manifest["rows"] and not problems:
        problems.append(f"the trace expects {manifest['rows']} rows, got {len(ids)}")
    if problems:
        refuse("CKE881", problems, file=folder.name)
    return manifest, ids


def binding_problems(manifest: dict[str, Any], capture: Capture, subject: Subject) -> list[str]:
    """Return what binds a trace to another teacher, other tokens, layers or geometry."""
    expected = {
        "protocol_version": PROTOCOL_VERSION,
        "token_sha256": capture.manifest["token_sha256"],
        "rows": capture.manifest["rows"],
        "layer_map": routed_layers(subject.package),
        **(subject.identity.routing or {}),
        "routing_method": METHOD,
        "reference_config_sha256": capture.manifest["reference_config_sha256"],
        "reference_weights_sha256": capture.manifest["reference_weights_sha256"],
        "capture_manifest_sha256": capture.manifest_sha256,
        "runtime": capture.manifest["runtime"],
    }
    return [
        f"`{name}`: the trace has `{manifest.get(name)}`, expected `{value}`"
        for name, value in expected.items()
        if manifest.get(name) != value
    ]


def run_paired(
    candidate: Subject, capture: Capture, suite: Suite, trace: Path, report: dict[str, Any]
) -> dict[str, Any]:
    """Return the paired result of a candidate whose deployed report is `report`."""
    contexts = matching_contexts(capture, suite)
    manifest, teacher = read_trace(trace, capture, candidate)
    control = RouteControl()
    subject = candidate.with_functions({"route": control})
    before = placed_sha256(candidate)
    natural = [_run(subject, control, capture, contexts, report, None) for _ in range(REPEATS)]
    own = natural[0].ids
    forced = [_run(subject, control, capture, contexts, report, own) for _ in range(REPEATS)]
    bxq = [_run(subject, control, capture, contexts, report, teacher) for _ in range(REPEATS)]
    runs = {"natural": natural, "forced_natural": forced, "bxq": bxq}
    controls = {name: [item.record() for item in found] for name, found in runs.items()}
    q_mean, b_mean = mean(natural[0].joined()), mean(bxq[0].joined())
    cell = {
        "report": "report.json",
        "partition": report["partition"],
        "token_sha256": report["token_sha256"],
        "reference_config_sha256": report["reference_config_sha256"],
        "candidate_weights_sha256": candidate.identity.weights_sha256,
    }
    substituted = candidate.inspection["substitutions"]
    replaced = "; ".join(str(item["replacement"]) for item in substituted)
    state = {"state": "substituted" if substituted else "measured"}
    state |= {"replacement": replaced} if substituted else {}
    return {
        "protocol_version": PROTOCOL_VERSION,
        "qxq_cell": {**state, "mean_kld": q_mean, **cell, "strata": natural[0].strata},
        "bxq_cell": {
            **state,
            "mean_kld": b_mean,
            **cell,
            "routing_trace_sha256": canonical_sha256(manifest),
            "routing_mode": ROUTING_MODE,
            "protocol_version": PROTOCOL_VERSION,
            "strata": bxq[0].strata,
        },
        "trace": manifest,
        "backend_evidence": {
            "kernel": KERNEL,
            "replay_supported": all(item.replayed for item in [*forced, *bxq]),
            "same_kernel_path": True,
        },
        "controls": controls,
        "natural_control_parity": {
            "passed": not parity_problems(controls),
            "spans": {name: _span(found) for name, found in runs.items()},
        },
        "candidate_weights_unchanged": placed_sha256(candidate) == before,
        "natural_divergence": divergence(
            teacher, own, [row.kld for row in natural[0].rows], report["score_from"]
        ),
        "routing_intervention_delta": q_mean - b_mean,
    }


class Run:
    """One run over every context: rows, the ids it used, and the ids it was bound to."""

    def __init__(self, rows: list[Row], ids: list[Ids], bound: list[Ids] | None) -> None:
        self.rows = rows
        self.ids = ids
        self.bound = bound

    @property
    def replayed(self) -> bool:
        """Whether the ids that entered dispatch are those that were forced."""
        assert self.bound is not None, "a natural run replays nothing"
        return all(np.array_equal(a, b) for a, b in zip(self.ids, self.bound, strict=True))

    @property
    def strata(self) -> list[dict[str, Any]]:
        """The domain table of the run."""
        return strata_table(self.rows)

    def joined(self) -> np.ndarray:
        """Return the divergence of every position."""
        return np.concatenate([row.kld for row in self.rows])

    def record(self) -> dict[str, Any]:
        """Return the run as evidence: digests of ids and of every position's divergence."""
        return {
            "ids_sha256": ids_sha256(self.ids),
            "bound_ids_sha256": None if self.bound is None else ids_sha256(self.bound),
            "kld_sha256": arrays_sha256({str(row.row): row.kld for row in self.rows}),
            "mean_kld": mean(self.joined()),
        }


def ids_sha256(ids: Sequence[Ids]) -> str:
    """Return the digest of ordered ids of all contexts."""
    return arrays_sha256({f"{row:04d}": item for row, item in enumerate(ids)})


def placed_sha256(subject: Subject) -> str:
    """Return the digest of a subject's weights as they are on the device."""
    return arrays_sha256(flat_weights(subject.weights))


def _run(
    subject: Subject,
    control: RouteControl,
    capture: Capture,
    contexts: Sequence[Context],
    report: dict[str, Any],
    forced: list[Ids] | None,
) -> Run:
    rows, ids = [], []
    for index, item in enumerate(contexts):
        control.begin(None if forced is None else forced[index])
        hidden = subject.hidden(np.array(item.token_ids, np.int32))
        ids.append(control.ids())
        arrays = row_scores(capture, subject, index, hidden, report)
        rows.append(
            Row(
                row=index,
                context_id=item.context_id,
                stratum=item.stratum,
                cluster=item.source_cluster_id,
                **{name: arrays[name] for name in ARRAYS},
                trunk=(arrays["trunk_0"],),
                trunk_top1=(arrays["top1_0"],),
            )
        )
    return Run(rows, ids, forced)


def _span(runs: list[Run]) -> float:
    return float(np.max(np.abs(runs[0].joined() - runs[1].joined()), initial=0.0))


def parity_problems(controls: Any) -> list[str]:
    """Return where the six runs do not repeat exactly; recomputed from their own digests."""
    if not isinstance(controls, dict):
        return ["there are no control runs"]
    runs: dict[str, list[Any]] = {
        name: controls[name] if isinstance(controls.get(name), list) else [] for name in RUNS
    }
    short = [name for name, found in runs.items() if len(found) != REPEATS]
    if short:
        return [f"`{name}` needs {REPEATS} runs" for name in short]
    problems = []
    natural = runs["natural"][0]
    for name, found in runs.items():
        for digest in ("ids_sha256", "kld_sha256"):
            values = {item.get(digest) for item in found}
            if len(values) != 1 or None in values:
                problems.append(f"the `{name}` runs differ in `{digest}`")
    for item in runs["forced_natural"]:
        if item.get("bound_ids_sha256") != natural.get("ids_sha256"):
            problems.append("a forced-natural run is not bound to the first natural run's ids")
        if item.get("kld_sha256") != natural.get("kld_sha256"):
            problems.append("a forced-natural run differs from the natural one")
    return problems
