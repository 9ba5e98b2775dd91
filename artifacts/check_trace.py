"""What a decode trace must say of itself: steps, choice, margin, class, top scores."""

import math
from pathlib import Path

from msgspec import UNSET

from cke.artifacts.check_report import check_manifest
from cke.artifacts.refusal import refuse_document
from cke.schemas.decode_trace import Choice, Decision, DecisionClass, DecodeTrace

PRINT_PRECISION = 2e-8
"""Relative precision of scores printed with nine digits."""


def check_decode_trace(trace: DecodeTrace, path: Path) -> None:
    """Refuse a trace that contradicts itself."""
    check_manifest(trace.manifest, path)
    last = len(trace.decode_trace) - 1
    for index, entry in enumerate(trace.decode_trace):
        where = f"$.decode_trace[{index}]"
        _expect(entry.step == index, path, f"{where}.step", index, entry.step)
        phase = "first_decode" if index == 0 else "decode"
        _expect(entry.phase == phase, path, f"{where}.phase", phase, entry.phase)
        if entry.stop_reason is not UNSET and (index != last or entry.stop_reason == "none"):
            refuse_document(path, f"{where}.stop_reason", "expected on the final step only")
        _check_scores(entry, path, where)
        _check_effects(entry, path, where)
        _check_top(entry, path, f"{where}.topk")


def _expect(holds: bool, path: Path, where: str, expected: object, got: object) -> None:
    if not holds:
        refuse_document(path, where, f"expected {expected}, got {got}")


def _check_scores(entry: Decision, path: Path, where: str) -> None:
    score, found = entry.runner_up_adjusted_score, entry.decision_margin
    if (entry.runner_up_token_id, score, found).count(None) not in (0, 3):
        refuse_document(path, where, "expected all of the runner-up's fields, or null in each")
    if score is None:
        return
    assert found is not None, "it is null with the score"
    margin = entry.adjusted_score_selected - score
    scale = max(abs(entry.adjusted_score_selected), abs(score), 1e-30)
    near = math.isclose(found, margin, rel_tol=1e-8, abs_tol=PRINT_PRECISION * scale)
    _expect(near, path, f"{where}.decision_margin", margin, found)
    if found < 0:
        refuse_document(path, f"{where}.decision_margin", "expected at least 0")


def decision_class(suppression: bool, penalty: bool) -> DecisionClass:
    """Return the class of a decision; suppression takes priority."""
    if suppression:
        return "structural_suppression"
    return "repetition_penalty_shifted" if penalty else "greedy"


def _check_effects(entry: Decision, path: Path, where: str) -> None:
    expected = decision_class(
        entry.structural_suppression_affected, entry.repetition_penalty_changed_selection
    )
    got = entry.decision_class
    _expect(got == expected, path, f"{where}.decision_class", expected, got)
    if entry.structural_suppression_affected and entry.suppressed_token_count == 0:
        refuse_document(path, f"{where}.structural_suppression_affected", "expected false")
    if entry.selected_token_penalized and entry.penalized_token_count == 0:
        refuse_document(path, f"{where}.selected_token_penalized", "expected false")


def _check_top(entry: Decision, path: Path, where: str) -> None:
    ids = [choice.token_id for choice in entry.topk]
    if len(set(ids)) != len(ids):
        refuse_document(path, where, "expected distinct token ids")
    selected = [choice for choice in entry.topk if choice.is_selected]
    if len(selected) != 1 or selected[0].token_id != entry.selected_token_id:
        refuse_document(path, where, "expected one selected entry, that of the selected token")
    scores = (entry.raw_score_selected, entry.adjusted_score_selected)
    found = (selected[0].raw_score, selected[0].adjusted_score)
    _expect(found == scores, path, where, scores, found)
    ranked = sorted(entry.topk, key=lambda choice: (-choice.adjusted_score, choice.token_id))
    if ranked[0].token_id != entry.selected_token_id:
        refuse_document(path, where, "expected the best adjusted score, the lowest id among equals")
    _check_runner_up(entry, ranked, path, where)


def _check_runner_up(entry: Decision, ranked: list[Choice], path: Path, where: str) -> None:
    runner_up = ranked[1].token_id if len(ranked) > 1 else None
    _expect(entry.runner_up_token_id == runner_up, path, where, runner_up, entry.runner_up_token_id)
    score = ranked[1].adjusted_score if len(ranked) > 1 else None
    found = entry.runner_up_adjusted_score
    _expect(found == score, path, f"{where}[1].adjusted_score", score, found)
