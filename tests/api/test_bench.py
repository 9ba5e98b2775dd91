"""`cke bench`: what it measures, against whom, and which goals it calls missed."""

import os
import sys
from pathlib import Path

import msgspec
import pytest

from cke.api.bench import process, starts
from cke.api.bench.report import BenchReport, Goal, Row, row, speed_row
from cke.artifacts.snapshot import read_snapshot
from cke.cli import main
from cke.errors import CkeError
from tests.models import TinyModel


def child(script: str) -> dict[str, float]:
    return process.run("toy", [sys.executable, "-c", script], os.environ)


def test_a_faster_subject_has_a_ratio_above_one() -> None:
    seconds = {"mine": [1.0, 1.0, 1.0], "theirs": [2.0, 4.0, 2.0]}
    found = speed_row("prefill 8", 8, seconds, "mine", (Goal("theirs", 1.4),))
    assert found.medians == {"mine": 8.0, "theirs": 4.0}
    (ratio,) = found.ratios
    assert (ratio.median, ratio.low, ratio.high, ratio.met) == (2.0, 2.0, 4.0, True)


def test_less_time_and_less_memory_are_better() -> None:
    found = row("start", "s", {"mine": [2.0], "theirs": [1.0]}, "mine", (Goal("theirs", 1.0),))
    assert (found.ratios[0].median, found.ratios[0].met) == (0.5, False)


def test_a_goal_is_missed_only_below_the_upper_end_of_the_interval() -> None:
    values = {"mine": [1.0, 1.0, 3.0], "theirs": [1.0, 1.0, 1.0]}
    for goal, met in ((2.9, True), (3.1, False)):
        found = row("x", "s", values, "theirs", (Goal("mine", goal),))
        assert found.ratios[0].met is met, goal


@pytest.mark.contract("LIS-150")
def test_bench_measures_every_driver_on_a_tiny_model(
    tiny_model: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_model("llama", num_hidden_layers=1)
    target = tmp_path / "results.json"
    command = ["bench", "--model", str(folder), "--rounds", "2", "--prefill", "16"]
    options = ["-n", "3", "--no-processes", "--no-capture", "--against", "none"]
    reports = tmp_path / "reports.json"
    assert main([*command, *options, "--json", str(target), "--reports", str(reports)]) == 0
    snapshot = read_snapshot(reports)
    assert (snapshot.kind, snapshot.perf and snapshot.perf.runs) == ("perf_results", 2)
    assert {item.report.selected_token_count for item in snapshot.run_reports} == {3}
    report = msgspec.json.decode(target.read_bytes(), type=BenchReport)
    assert [item.name for item in report.rows] == ["prefill 16", "decode 3"]
    for item in report.rows:
        assert item.rounds.keys() == {"cke whole_step", "cke per_layer"}
        assert all(len(values) == 2 and min(values) > 0 for values in item.rounds.values())
        assert [ratio.other for ratio in item.ratios] == ["cke per_layer"]
    shown = capsys.readouterr().out
    assert "prefill 16\n  cke whole_step" in shown
    assert "x cke per_layer (" in shown


def test_bench_measures_at_least_one_round(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--model", "x", "--rounds", "0"]) == 2


def test_a_talkative_process_is_read_to_its_end() -> None:
    script = (
        "import sys; sys.stderr.write('x' * 300_000); print('a library speaks');"
        f"print({process.FIRST!r} + '7'); print({process.REPORT!r} + '{{\"peak\": 5}}')"
    )
    found = child(script)
    assert found.pop("seconds") > 0
    assert found == {"peak": 5}


def test_a_process_that_fails_is_named_with_what_it_said_last() -> None:
    with pytest.raises(CkeError) as caught:
        child("import sys; print('first', file=sys.stderr); sys.exit('no weights')")
    assert str(caught.value) == (
        "error[CKE909]: the process `toy` expects to give a token, got exit code 1\n"
        "  note: it said last: no weights\n"
        "  help: leave whole processes out with `--no-processes`"
    )


def test_a_process_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LIMIT", 0.2)
    with pytest.raises(CkeError, match="got exit code -9"):
        child("import time; time.sleep(60)")


def test_starts_are_compared_with_their_goals(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: set[Path] = set()

    def measure(kind: str, path: Path, cache: Path, **options: object) -> dict[str, float]:
        if kind.startswith("idle"):
            return {"peak": 200.0, "seconds": 1.0}
        warm = cache in seen
        seen.add(cache)
        held = {"weights": 90.0, "state": 10.0} if kind == "cke" else {}
        seconds = {"cke": 2.0 if warm else 4.0, "transformers": 3.0, "llamacpp": 1.0}[kind]
        return {"peak": 320.0, "seconds": seconds, **held}

    monkeypatch.setattr(starts, "measure", measure)
    rows = {
        item.name: item
        for item in starts.start_rows(
            starts.Engines(tmp_path, tmp_path, tmp_path / "x.gguf"), "float32", 2, tmp_path, print
        )
    }
    assert goals(rows["first token, cold"]) == {"transformers": (0.75, False)}
    assert goals(rows["first token, warm, whole_step"]) == {"cke whole_step, cold": (2.0, True)}
    assert goals(rows["first token, warm, per_layer"]) == {"cke per_layer, cold": (2.0, True)}
    memory = rows["peak memory above idle"]
    assert memory.medians["transformers"] == 120.0
    assert goals(memory) == {starts.LIMIT: (pytest.approx(130 / 120), True)}


def goals(found: Row) -> dict[str, tuple[float, bool | None]]:
    return {item.other: (item.median, item.met) for item in found.ratios if item.goal is not None}


def test_the_peak_of_a_process_is_not_that_of_its_parent() -> None:
    script = (
        "from cke.api.bench import process as p;"
        "print(p.FIRST + '7'); print(p.REPORT + '{\"peak\": %d}' % p._peak_bytes())"
    )
    held = bytearray(b"1") * (1 << 28)
    assert child(script)["peak"] < len(held)


@pytest.mark.slow
def test_a_process_reports_its_first_token_and_its_memory(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    folder = tiny_model("llama", num_hidden_layers=1)
    options = {"dtype": "float32", "driver": "per_layer", "new_tokens": 2}
    found = process.measure("cke", folder, tmp_path / "cache", **options)
    assert min(found["weights"], found["state"]) > 0
    assert found["peak"] > found["weights"] + found["state"]
