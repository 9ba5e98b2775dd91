"""Capture and scoring: what aborts and when, and what the numbers are."""

import itertools
import math
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import msgspec
import numpy as np
import pytest
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from cke.errors import CkeError
from cke.fidelity import capture as capture_module
from cke.fidelity.capture import CaptureRequest, capture
from cke.fidelity.capture_reader import Capture
from cke.fidelity.freeze import freeze
from cke.fidelity.kld import block_scores, forward_kld
from cke.fidelity.score import REPORT, Shard, merge, score
from cke.fidelity.statistics import mean, worker_agreement
from cke.fidelity.subject import Subject
from tests.fidelity.conftest import TIMES, Tiny, tiny_suite
from tests.fidelity.test_stack_laws import PARAMETERS

pytestmark = pytest.mark.slow


def never() -> Subject:
    raise AssertionError("a model was loaded")


@pytest.mark.contract("LAW-3.2")
def test_other_tokens_abort_before_a_model_loads(tiny: Tiny, tmp_path: Path) -> None:
    other = tiny_suite(tmp_path / "suite", length=17, contexts=36)
    with pytest.raises(CkeError, match=r"error\[CKE872\]: .*the capture was taken over another"):
        score(tiny.capture, other, never, tmp_path / "out")
    changed = Capture(tiny.capture.folder)
    changed.manifest = {**changed.manifest, "token_sha256": "0" * 64}
    with pytest.raises(CkeError, match="token hash: the capture has `0000"):
        score(changed, tiny.suite, never, tmp_path / "out")


@pytest.mark.contract("LAW-3.1")
def test_scoring_reaches_no_tokenizer(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cke.runtime.tokenizer as tokenizer

    def forbidden(*arguments: Any, **named: Any) -> Any:
        raise AssertionError("a tokenizer was called")

    monkeypatch.setattr(tokenizer, "load_tokenizer", forbidden)
    monkeypatch.setattr(tokenizer.TextTokenizer, "encode", forbidden)
    report = score(tiny.capture, tiny.suite, lambda: tiny.reference, tmp_path / "out")
    assert report is not None
    assert report["mean_kld"] == 0.0


@pytest.mark.contract("LAW-5.1", "LAW-5.5", "LAW-2.7")
def test_compiled_run_is_labelled_and_does_not_match_an_eager_capture(
    tiny: Tiny, tmp_path: Path
) -> None:
    reference = tiny.reference
    compiled = Subject(
        reference.package,
        dict(reference.weights),
        reference.identity,
        reference.inspection,
        "compiled",
    )
    assert compiled.settings.authoritative is False
    assert compiled.settings.enforce_eager is False
    with pytest.raises(CkeError, match=r"eager mode \(`enforce_eager`\)"):
        score(tiny.capture, tiny.suite, lambda: compiled, tmp_path / "out")


@pytest.mark.contract("LAW-5.5")
def test_finished_capture_is_never_edited_in_place(tiny: Tiny) -> None:
    with pytest.raises(CkeError, match=r"error\[CKE872\]: expected a new folder"):
        capture(tiny.reference, tiny.suite, CaptureRequest(limit=2), tiny.capture.folder)


@pytest.mark.contract("LAW-5.5")
def test_begun_capture_goes_on_only_under_the_same_fields(tiny: Tiny, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(message: str) -> None:
        raise Stop

    request = CaptureRequest(limit=2)
    with pytest.raises(Stop):
        capture(tiny.reference, tiny.suite, request, tmp_path / "capture", stop)
    with pytest.raises(CkeError, match=r"`rows`: begun with `2`, now `3`"):
        capture(tiny.reference, tiny.suite, CaptureRequest(limit=3), tmp_path / "capture")
    first = tmp_path / "capture" / "rows" / "row-0000.safetensors"
    before = first.stat().st_mtime_ns
    resumed = capture(tiny.reference, tiny.suite, request, tmp_path / "capture")
    assert first.stat().st_mtime_ns == before
    whole = capture(tiny.reference, tiny.suite, request, tmp_path / "again")
    assert resumed == whole


@pytest.mark.contract("LAW-7.1", "LAW-7.2")
def test_replay_that_differs_is_refused_at_capture(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rounded(arrays: dict[str, np.ndarray]) -> bytes:
        if "hidden" in arrays:
            hidden = arrays["hidden"].copy()
            hidden[0, 0] += np.float32(1e-3)
            arrays = {"hidden": hidden}
        return save_arrays(arrays)

    monkeypatch.setattr(capture_module, "save", rounded)
    with pytest.raises(CkeError, match=r"error\[CKE874\]: the replay probe is not bitwise"):
        capture(tiny.reference, tiny.suite, CaptureRequest(limit=1), tmp_path / "capture")


@pytest.mark.contract("LAW-7.3")
def test_logits_storage_gives_the_same_scores(tiny: Tiny, tmp_path: Path) -> None:
    request = CaptureRequest(limit=3, storage="logits")
    manifest = capture(tiny.reference, tiny.suite, request, tmp_path / "capture")
    assert manifest["replay_probe"] is None
    taken = Capture(tmp_path / "capture")
    report = score(taken, tiny.suite, lambda: tiny.reference, tmp_path / "out")
    assert report is not None
    assert report["max_kld"] == 0.0


def test_changed_row_of_a_capture_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(tiny.capture.folder, tmp_path / "capture")
    row = tmp_path / "capture" / "rows" / "row-0001.safetensors"
    row.write_bytes(row.read_bytes()[:-1] + b"\x01")
    with pytest.raises(CkeError, match=r"error\[CKE873\]: `rows/row-0001.safetensors` has other"):
        score(Capture(tmp_path / "capture"), tiny.suite, never, tmp_path / "out")


@pytest.mark.contract("LAW-11.2", "LAW-11.3")
def test_qualification_without_a_receipt_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    request = CaptureRequest(partition="qualification", limit=1)
    capture(tiny.reference, tiny.suite, request, tmp_path / "capture")
    taken = Capture(tmp_path / "capture")
    with pytest.raises(CkeError, match=r"error\[CKE879\]: qualification needs a freeze receipt"):
        score(taken, tiny.suite, never, tmp_path / "out")
    late = freeze(PARAMETERS, TIMES["judged"])
    with pytest.raises(CkeError, match="not before the run"):
        score(taken, tiny.suite, never, tmp_path / "out", freeze=late, clock=lambda: TIMES["int8"])
    early = freeze(PARAMETERS, TIMES["baseline"])
    report = score(
        taken,
        tiny.suite,
        lambda: tiny.reference,
        tmp_path / "out",
        freeze=early,
        clock=lambda: TIMES["int8"],
    )
    assert report is not None
    assert report["freeze_receipt"] == early


def test_shards_merge_to_the_bytes_of_one_run(tiny: Tiny, tmp_path: Path) -> None:
    from cke.api.fidelity import open_subject

    candidate = open_subject(tiny.root / "int8")
    one = tiny.root / "score-int8"
    folders = [tmp_path / f"shard-{index}" for index in range(2)]
    for index, folder in enumerate(folders):
        done = score(
            tiny.capture,
            tiny.suite,
            lambda: candidate,
            folder,
            shard=Shard(index, 2),
            clock=lambda: TIMES["int8"],
        )
        assert done is None
    contexts = tuple(
        item for item in tiny.suite.contexts if item.context_id in tiny.capture.manifest["contexts"]
    )
    expected = one.joinpath(REPORT).read_bytes()
    for number, order in enumerate(itertools.permutations(folders)):
        merge(order, tmp_path / f"merged-{number}", contexts)
        assert tmp_path.joinpath(f"merged-{number}", REPORT).read_bytes() == expected


def test_missing_row_is_not_merged(tiny: Tiny, tmp_path: Path) -> None:
    score(tiny.capture, tiny.suite, lambda: tiny.reference, tmp_path / "s", shard=Shard(0, 2))
    contexts = tuple(tiny.suite.contexts[:3])
    with pytest.raises(CkeError, match=r"error\[CKE873\]: row 1 was not scored"):
        merge([tmp_path / "s"], tmp_path / "out", contexts)


def test_score_that_is_not_finite_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    weights = {step: dict(found) for step, found in tiny.reference.weights.items()}
    weights["head"] = {n: a.at[0].set(jnp.nan) for n, a in weights["head"].items()}
    broken = Subject(
        tiny.reference.package, weights, tiny.reference.identity, tiny.reference.inspection
    )
    with pytest.raises(CkeError, match=r"error\[CKE875\]: `kld` is not finite at row 0"):
        score(tiny.capture, tiny.suite, lambda: broken, tmp_path / "out")


def agreement(ranks: list[np.ndarray]) -> tuple[dict[str, Any], list[str]]:
    """The agreement of ranks that choose the same first tokens."""
    return worker_agreement(ranks, [np.zeros(len(rank)) for rank in ranks])


@pytest.mark.contract("LAW-8.8")
def test_flip_of_the_first_token_between_workers_is_counted_and_not_refused() -> None:
    same = np.array([1.0, 2.0, 3.0])
    tops = [np.array([5, 6, 7]), np.array([5, 9, 7]), np.array([5, 9, 8])]
    report, problems = worker_agreement([same, same, same], tops)
    assert report["top1_flips"] == 2
    assert problems == []


def softmax(logits: np.ndarray) -> np.ndarray:
    wide = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return np.asarray(wide / wide.sum(-1, keepdims=True))


@pytest.mark.contract("LAW-0.6")
@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_divergence_is_that_of_the_reference_from_the_candidate(mode: Any) -> None:
    first, second = (
        np.random.default_rng(seed).normal(size=(4, 50)).astype(np.float32) * 3 for seed in (0, 1)
    )
    p, q = softmax(first), softmax(second)
    forward, backward = (p * np.log(p / q)).sum(-1), (q * np.log(q / p)).sum(-1)
    assert not np.allclose(forward, backward, rtol=1e-2)
    found = block_scores(jnp.asarray(first), jnp.asarray(second), 50, mode)
    np.testing.assert_allclose(found.kld, forward, rtol=1e-5)
    np.testing.assert_allclose(found.reverse, backward, rtol=1e-5)
    np.testing.assert_allclose(found.reference_top1, p.max(-1), rtol=1e-6)
    np.testing.assert_array_equal(
        forward_kld(jnp.asarray(first), jnp.asarray(second), 50, mode), found.kld
    )


@pytest.mark.contract("LAW-4.3")
def test_padding_rows_of_the_head_reach_no_statistic() -> None:
    first, second = (
        np.random.default_rng(seed).normal(size=(4, 50)).astype(np.float32) for seed in (0, 1)
    )
    plain = block_scores(jnp.asarray(first), jnp.asarray(second), 40, "eager")
    for side in (first, second):
        side[:, 40:] = 1e30
    padded = block_scores(jnp.asarray(first), jnp.asarray(second), 40, "eager")
    for ours, theirs in zip(plain, padded, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    whole = block_scores(jnp.asarray(first), jnp.asarray(second), 50, "eager")
    assert not np.array_equal(whole.kld, plain.kld)


def test_agreement_counts_the_common_prefix_of_the_top_five() -> None:
    first = np.zeros((3, 20), np.float32)
    first[:, :5] = [9, 8, 7, 6, 5]
    second = first.copy()
    second[1, [1, 2]] = [7, 8]
    second[2, 0] = 0
    found = block_scores(jnp.asarray(first), jnp.asarray(second), 20, "eager")
    assert found.agreeing.tolist() == [5, 1, 0]


@pytest.mark.contract("LAW-8.5", "LAW-8.6", "LAW-8.9")
@pytest.mark.parametrize(("delta", "refused"), [(0.0, False), (2.0**-17, False), (2.0**-16, True)])
def test_workers_agree_to_the_bound_at_every_position(delta: float, refused: bool) -> None:
    first = np.full(4000, 1024.0)
    second = first.copy()
    second[7] += delta
    report, problems = agreement([first, second])
    assert report["max_abs_delta"] == delta
    assert bool(problems) == refused
    assert agreement([first])[0]["workers"] == 1
    assert agreement([first])[1] == []


@pytest.mark.contract("LAW-8.5")
def test_workers_agree_on_the_mean_to_its_own_bound() -> None:
    first = np.full(10, 1e-6)
    report, problems = agreement([first, first + 1e-9])
    assert report["max_abs_delta"] < 1e-5
    assert problems[0].startswith("`trunk_mean_kld`: rank 0 has 1e-06, rank 1 ")


@pytest.mark.contract("LAW-8.7")
def test_refusal_of_workers_names_field_position_and_both_values() -> None:
    second = np.array([1.0, 2.0, 3.5])
    _, problems = agreement([np.array([1.0, 2.0, 3.0]), second])
    assert "`trunk_kld` at position 2: rank 0 has " in problems[0]
    assert "3.0" in problems[0]
    assert "3.5" in problems[0]


@pytest.mark.contract("LAW-8.10")
def test_workers_of_other_lengths_or_without_a_number_disagree() -> None:
    first = np.array([1.0, 2.0])
    assert agreement([first, first[:1]])[1]
    assert agreement([first, np.array([1.0, math.nan])])[1]
    assert agreement([np.array([math.nan]), np.array([math.nan])])[1]


def test_mean_depends_on_the_values_alone() -> None:
    values = [1e16, 1.0, -1e16, 1.0]
    assert {mean(order) for order in itertools.permutations(values)} == {0.5}


@pytest.mark.contract("LAW-12.4")
def test_third_party_scores_from_the_artifact_without_the_reference(
    tiny: Tiny, artifact: Path, tmp_path: Path
) -> None:
    from cke.api.fidelity import open_subject
    from cke.fidelity.suite_reader import load_suite

    names = {path.name for path in artifact.rglob("*")}
    assert "model.safetensors" not in names
    taken = Capture(artifact / "reference")
    candidate = open_subject(tiny.root / "int8")
    report = score(taken, load_suite(artifact / "suite"), lambda: candidate, tmp_path / "out")
    known = msgspec.json.decode(artifact.joinpath("models/int8/report.json").read_bytes())
    assert report is not None
    assert report["mean_kld"] == known["mean_kld"] > 0
    assert load_arrays(artifact.joinpath("reference/rows/row-0000.safetensors").read_bytes())
