"""Select a token from logits: raw greedy, or with structural suppression and repetition penalty.

Scores are float32 throughout; ties go to the lowest id. Suppressed tokens are no candidates: they
are neither selected, nor runner-up, nor among the top scores.
"""

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from cke.artifacts.check_trace import decision_class
from cke.artifacts.fingerprints import Policy
from cke.schemas.decode_trace import LIS_TRACE_TOPK_SIZE, Choice, Decision

Floats = NDArray[np.float32]

STRUCTURAL_NAMES = (
    "begin_of_text",
    "start_header_id",
    "end_header_id",
    "finetune_right_pad_id",
    "step_id",
    "python_tag",
)
RESERVED = "reserved_special_token_"


def is_structural(text: str) -> bool:
    """Whether a token's text, such as `<|python_tag|>`, is one of structural control."""
    if not (text.startswith("<|") and text.endswith("|>")):
        return False
    name = text[2:-2]
    return name in STRUCTURAL_NAMES or name.startswith(RESERVED)


def select(
    logits: Floats,
    step: int,
    policy: Policy,
    suppressed: Sequence[int],
    generated: Collection[int],
) -> Decision | None:
    """Return the decision of a step; None when no candidate has a finite score."""
    raw = np.asarray(logits, np.float32)
    if not raw.max() < np.inf:  # a NaN is not below it either
        return None
    penalised = _penalised(policy, generated)
    adjusted = _penalise(raw, penalised, np.float32(policy.penalty))
    skipped = [token for token in suppressed if token < raw.size] if policy.suppression else []
    ranked = _best(_without(adjusted, skipped), LIS_TRACE_TOPK_SIZE)
    if not ranked:
        return None
    affected = bool(skipped) and bool(set(_best(adjusted, LIS_TRACE_TOPK_SIZE)) & set(skipped))
    changed = bool(penalised) and _best(_without(raw, skipped), 1)[0] != ranked[0]
    return _decision(step, raw, adjusted, ranked, len(set(skipped)), penalised, affected, changed)


def _without(scores: Floats, skipped: Sequence[int]) -> Floats:
    allowed = scores.copy()
    allowed[skipped] = -np.inf
    return allowed


def _penalised(policy: Policy, generated: Collection[int]) -> frozenset[int]:
    return frozenset() if float(policy.penalty) == 1.0 else frozenset(generated)


def _penalise(raw: Floats, penalised: frozenset[int], penalty: np.float32) -> Floats:
    adjusted = raw.copy()
    ids = np.array(sorted(penalised), np.int64)
    chosen = adjusted[ids]
    adjusted[ids] = np.where(chosen > 0, chosen / penalty, chosen * penalty)
    return adjusted


def _best(scores: Floats, count: int) -> list[int]:
    """Return the ids of the highest scores above -inf, the lowest id first among equals."""
    size = min(count, scores.size)
    threshold = np.partition(scores, scores.size - size)[scores.size - size]
    above = np.flatnonzero(scores >= threshold)
    above = above[scores[above] > -np.inf]
    order = np.lexsort((above, -scores[above].astype(np.float64)))
    return [int(token) for token in above[order][:size]]


def _decision(
    step: int,
    raw: Floats,
    adjusted: Floats,
    ranked: list[int],
    suppressed_count: int,
    penalised: frozenset[int],
    affected: bool,
    changed: bool,
) -> Decision:
    best, second = ranked[0], ranked[1] if len(ranked) > 1 else None
    score = nine_digits(adjusted[best])
    runner_up = None if second is None else nine_digits(adjusted[second])
    return Decision(
        step=step,
        phase="first_decode" if step == 0 else "decode",
        selected_token_id=best,
        raw_score_selected=nine_digits(raw[best]),
        adjusted_score_selected=score,
        runner_up_token_id=second,
        runner_up_adjusted_score=runner_up,
        decision_margin=None if runner_up is None else nine_digits(score - runner_up),
        structural_suppression_affected=affected,
        repetition_penalty_changed_selection=changed,
        selected_token_penalized=best in penalised,
        suppressed_token_count=suppressed_count,
        penalized_token_count=len(penalised),
        decision_class=decision_class(affected, changed),
        topk=tuple(
            Choice(
                token_id=token,
                raw_score=nine_digits(raw[token]),
                adjusted_score=nine_digits(adjusted[token]),
                is_selected=token == best,
            )
            for token in ranked
        ),
    )


def nine_digits(value: float | np.floating) -> float:
    """Return a score as nine digits print it: enough to name every float32."""
    return float(f"{float(value):.9g}")
