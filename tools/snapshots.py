"""Write the snapshots of verification and measurement from real runs, all with one command.

python -m tools.snapshots [FOLDER]
"""

import sys
import tempfile
from pathlib import Path

from cke.api import load
from cke.api.bench.reports import perf_snapshot
from cke.api.execution import ModelEngine
from cke.artifacts.engine import RunRequest
from cke.artifacts.execute import execute
from cke.artifacts.snapshot import encode_snapshot, make_snapshot
from cke.schemas.run_report import RunReport
from cke.schemas.snapshot import SnapshotKind
from tests.models import make_model
from tools.fetch_models import fetch

ROOT = Path(__file__).resolve().parent.parent
FILES: dict[SnapshotKind, str] = {
    "token_parity_snapshot": "verification/token_parity_snapshot.json",
    "qwen3_sanity_snapshot": "verification/qwen3_sanity_snapshot.json",
    "perf_results": "perf/results.json",
    "perf_smoke": "verification/perf_smoke.json",
}
PROMPT = (504, 2365, 282, 4649, 314)
"""Token ids of SmolLM2 for a short prompt."""
PARITY = RunRequest(tokens=PROMPT, generate=16)
"""What the snapshot of token parity ran."""


def main() -> None:
    """Run the models and write every snapshot."""
    folder = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "tests"
    smollm2 = fetch("smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"
    model = load(smollm2, driver="per_layer")
    drivers = (model, load(smollm2, driver="whole_step"))
    parity = [execute(ModelEngine(item), PARITY).report for item in drivers]
    snapshots = (
        make_snapshot("token_parity_snapshot", parity),
        make_snapshot("qwen3_sanity_snapshot", qwen3_reports()),
        perf_snapshot(model, PROMPT, 16, 3),
        perf_snapshot(model, PROMPT, 4, 1, "perf_smoke"),
    )
    for snapshot in snapshots:
        path = folder / FILES[snapshot.kind]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_snapshot(snapshot))
        print(path)


def qwen3_reports() -> list[RunReport]:
    """Two runs of a tiny random Qwen3."""
    request = RunRequest(tokens=(5, 6, 7), generate=8)
    with tempfile.TemporaryDirectory() as name:
        make_model("qwen3").save_pretrained(name)
        engine = ModelEngine(load(name, driver="per_layer"))
        return [execute(engine, request).report for _ in range(2)]


if __name__ == "__main__":
    main()
