"""A finding before numbers, or of numbers, before it is put into a report."""

import msgspec

from cke.schemas.diagnosis import Counterfactual, Replay
from cke.schemas.numerical_report import Gate, Metrics, Row
from cke.xray.classes import CLASSES, FailureClass, Owner


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong, where, and why we believe it.

    `failure_class` None is an open question. So is the owner of a first token that differs while
    every tensor is inside its budget.
    """

    failure_class: str | None
    because: tuple[str, ...]
    owner: Owner | None = None
    checkpoint_id: str | None = None
    role: str | None = None
    segment: int | None = None
    op: str | None = None
    operator: str | None = None
    kernel_id: str | None = None
    source: str | None = None
    metrics: Metrics | None = None
    gate: Gate | None = None
    replay: Replay | None = None
    confirmed_by: Counterfactual | None = None
    also_closing: tuple[Counterfactual, ...] = ()
    tried: int = 0
    question: str | None = None

    @property
    def row(self) -> FailureClass | None:
        """The row of the class table."""
        return None if self.failure_class is None else CLASSES[self.failure_class]

    @property
    def open(self) -> bool:
        """Whether a further capture has to say who owns it."""
        ranking = self.failure_class == "RANKING_DIVERGENCE" and self.owner is None
        return self.failure_class is None or ranking

    @property
    def fix_owner(self) -> Owner | None:
        """The one owner, None while the question is open."""
        return None if self.row is None or self.open else self.row.owner(self.owner)


def open_at(over: Row, because: tuple[str, ...], question: str) -> Finding:
    """Return the question that a row outside its budget leaves open."""
    return Finding(
        failure_class=None,
        checkpoint_id=over.checkpoint_id,
        role=over.role,
        segment=over.segment,
        kernel_id=over.kernel_id,
        metrics=over.metrics,
        gate=over.gate,
        because=because,
        question=question,
    )
