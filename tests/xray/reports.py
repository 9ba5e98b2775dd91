"""Diagnoses for tests of what is made of them: a finding, a pass, an open question, a stop."""

import msgspec

from cke.schemas.diagnosis import (
    Counterfactual,
    Coverage,
    Diagnosis,
    Divergence,
    Point,
    Probe,
    Replay,
    Round,
    Stage,
)
from cke.schemas.numerical_report import Curve, Gate, Metrics, Ranking, Worst
from cke.xray.classes import ARCHITECTURE_POLICY, CLASSES, POLICY, STAGES

GATE = Gate(rule="forward_error", relative_rmse=1.6e-6, max_abs=3e-6, reduction=8, depth=0)
EDGE = "layer.0.attention.rope_query_output"
PATCH = """--- a/blocks/decoder.circuit
+++ b/blocks/decoder.circuit
@@ -41,1 +41,1 @@
-    q = rope(q, positions, freqs, base: 12345.0)
+    q = rope(q, positions, freqs, base: 10000.0)
"""


def metrics(error: float | None) -> Metrics:
    """Return metrics with this relative RMSE; None is an edge with a NaN on one side."""
    worst = Worst(coordinate={"B": 0, "T": 10, "H": 3, "E": 5}, subject=0.1976, oracle=0.21)
    return Metrics(
        total_elements=384,
        exact_elements=9,
        exact_ratio=9 / 384,
        byte_exact=False,
        finite=error is not None,
        subject_nonfinite=0 if error is not None else 2,
        oracle_nonfinite=0,
        mismatched_nonfinite=0 if error is not None else 2,
        cosine=0.99,
        rmse=error,
        relative_rmse=error,
        mean_abs=error,
        max_abs=error,
        oracle_max_abs=1.0,
        max_ulp=None,
        worst=worst,
        undefined={},
    )


def replay(definition: float = 3.2e-8, oracle: float = 0.0187) -> Replay:
    """Return a replay whose kernel follows its definition, and whose oracle does not."""
    return Replay(
        ops=("layer.0.attention.rope",),
        inputs=("layer.0.attention.q", "positions"),
        kernel_against_reference=metrics(definition),
        reference_against_oracle=metrics(oracle),
        kernel_against_oracle=metrics(oracle),
        compiled_against_kernel=None,
        gate=GATE,
        says="oracle_differs",
    )


def change(value: float = 10000.0, patch: str | None = PATCH) -> Counterfactual:
    """Return a change of the base that closes the gap."""
    return Counterfactual(
        op="attention.rope",
        kind="attribute",
        what="base",
        old=12345.0,
        new=value,
        origin="declared",
        before=0.0187,
        after=4e-8,
        closes=True,
        patch=patch,
    )


def stages(broken: str | None) -> tuple[Stage, ...]:
    """Return the stages of a run that broke in one of them, or in none."""
    states = {name: "passed" for name in STAGES}
    if broken is not None:
        at = STAGES.index(broken)
        states |= {name: "not_reached" for name in STAGES[at + 1 :]}
        states[broken] = "broken"
    return tuple(
        Stage(name=name, state=state, checked=0 if state == "not_reached" else 21, detail="what")
        for name, state in states.items()
    )


def points() -> tuple[Point, ...]:
    """Return three stops: exact, over its budget, inherited."""
    rows = (("embedding", 0.0, "exact"), (EDGE, 0.0187, "over"), ("logits", 0.2, "over"))
    return tuple(
        Point(
            stop=stop,
            checkpoint_id=name,
            role=None,
            segment=0,
            status=status,
            max_abs=error,
            rmse=error,
            relative_rmse=error,
            exact_ratio=0.0 if error else 1.0,
            budget=1.6e-6,
            kernel_id="rope",
        )
        for stop, (name, error, status) in enumerate(rows)
    )


def clean() -> Diagnosis:
    """Return a pass."""
    return Diagnosis(
        status="complete",
        verdict="pass_within_gate",
        banner="79/79 edges within gate — FP32 · PyTorch · fixture 20260725 · 1 thread",
        scope={
            "circuit": "llama@1",
            "dtype": "f32",
            "rows": 1,
            "tokens": 12,
            "decode_steps": 0,
            "segments": [],
            "oracle": "pytorch",
        },
        subject={"family": "llama", "dtype": "f32"},
        oracle={"producer": "pytorch", "version": "5.24.0", "dtype": "f32"},
        stages=stages(None),
        first_divergence=None,
        next_probe=None,
        coverage=Coverage(
            ops_with_edges=37,
            ops_total=37,
            edges_compared=43,
            edges_total=45,
            ops_without_edges=(),
        ),
        rounds=(
            Round(purpose="sparse", layers=None, edges=None, subject_tensors=24, oracle_tensors=24),
        ),
        points=points()[:1],
        byte_exact_prefix=1,
        first_non_exact=None,
        first_over_gate=None,
        curves=(Curve(metric="max_abs", jumps=(), monotonicity_breaks=()),),
        rankings=(Ranking(check="mixed_prefill", segment=0, positions=12, agreeing=12, flips=()),),
        first_flip=None,
        second_report=None,
        architecture_policy={"rule": POLICY},
        fix_progression=(),
        reproduce="cke xray --model model --oracle pytorch --out out",
    )


def divergence(failure_class: str | None = "POSITION_CONTRACT_MISMATCH") -> Divergence:
    """Return a divergence of a class; None leaves the question open."""
    row = None if failure_class is None else CLASSES[failure_class]
    return Divergence(
        checkpoint_id=EDGE,
        role=None,
        layer=0,
        phase="prefill",
        segment=0,
        op="attention.rope",
        operator="rope",
        kernel_id="rope",
        source="blocks/decoder.circuit:41:9",
        failure_class=failure_class,
        stage="numbers" if row is None else row.stage,
        fix_owner=None if row is None else row.owner(),
        recommended_action=None if row is None else row.action,
        because=("on the oracle's own inputs the kernel follows its definition",),
        metrics=metrics(0.0187),
        gate=GATE,
        replay=replay(),
        confirmed_by=change(),
        tried=29,
        last_passing_checkpoint="embedding",
    )


def finding() -> Diagnosis:
    """Return a confirmed fault of a circuit in a user's folder."""
    return msgspec.structs.replace(
        clean(),
        verdict="behavioral_divergence",
        banner="1/3 edges within gate — FP32 · PyTorch · fixture 20260725 · 1 thread",
        scope={**clean().scope, "circuit_folder": "mine"},
        stages=stages("numbers"),
        first_divergence=divergence(),
        points=points(),
        first_non_exact=1,
        first_over_gate=1,
        first_flip=(0, 0, 4),
        architecture_policy={
            "rule": POLICY,
            "owner": "circuit",
            "where": ARCHITECTURE_POLICY["circuit"],
        },
        fix_progression=(f"fix {EDGE}", "rerun"),
    )


def open_question() -> Diagnosis:
    """Return a divergence that two changes explain."""
    found = msgspec.structs.replace(
        divergence(None), confirmed_by=None, also_closing=(change(), change(5000.0))
    )
    return msgspec.structs.replace(
        finding(),
        status="incomplete",
        verdict="cosmetic_drift",
        first_flip=None,
        first_divergence=found,
        next_probe=Probe(
            command="cke xray --model model --oracle llamacpp --out out",
            question="which of the changes holds on longer inputs",
        ),
        architecture_policy={"rule": POLICY},
    )


def stopped() -> Diagnosis:
    """Return a finding of metadata: nothing was compared."""
    found = msgspec.structs.replace(
        divergence("MISSING_TOLERANCE_PROFILE"),
        because=("no entry of the profile matches",),
        metrics=None,
        gate=None,
        replay=None,
        confirmed_by=None,
        tried=0,
        checkpoint_id=None,
        op=None,
        operator=None,
        kernel_id=None,
        source=None,
        phase=None,
        segment=None,
        last_passing_checkpoint=None,
    )
    return msgspec.structs.replace(
        finding(),
        status="stopped",
        verdict=None,
        banner="no edges compared — pytorch",
        stages=stages("metadata"),
        first_divergence=found,
        points=(),
        first_flip=None,
        first_non_exact=None,
        first_over_gate=None,
    )
