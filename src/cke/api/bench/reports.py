"""The decode of a bench as execution artifacts: complete run reports in one snapshot."""

from collections.abc import Sequence

from cke.api.execution import ModelEngine
from cke.api.model import Model
from cke.artifacts.engine import RunRequest
from cke.artifacts.execute import execute
from cke.artifacts.snapshot import make_snapshot
from cke.schemas.snapshot import RunSnapshot, SnapshotKind

MOST = 16
"""Run reports that one snapshot holds."""


def perf_snapshot(
    model: Model,
    tokens: Sequence[int],
    new_tokens: int,
    rounds: int,
    kind: SnapshotKind = "perf_results",
) -> RunSnapshot:
    """Return the snapshot of some equal decodes, each measured; of more than 16 the first 16."""
    engine = ModelEngine(model)
    tag = "smoke" if kind == "perf_smoke" else "bench"
    request = RunRequest(tokens=tuple(tokens), generate=new_tokens, perf=True, perf_tag=tag)
    return make_snapshot(kind, [execute(engine, request).report for _ in range(min(rounds, MOST))])
