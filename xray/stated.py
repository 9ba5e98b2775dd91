"""What an oracle states of itself, held against what is measured on its tensors and its process.

It runs once all metadata is joined, and before any number counts: tensors are opened here.
"""

from cke.oracles.base import Array
from cke.oracles.facts import FactFinding, check_facts
from cke.runtime.trace_reader import TraceFolder
from cke.xray.finding import Finding
from cke.xray.sides import Measured


def stated_fault(
    oracle: TraceFolder, measured: Measured, lookups: tuple[Array, ...], joined: frozenset[str]
) -> tuple[Finding | None, int]:
    """Return the first statement that measurement contradicts, and how many were measured.

    `lookups` are the subject's own tables: where the oracle shows none, tokens are read off them,
    and a contradiction is a question, since the table may be what is wrong. Of single checkpoints
    only those count whose metadata is `joined`: what the two sides say comes first.
    """
    facts = check_facts(
        oracle,
        tables=measured.tables or lookups,
        version=measured.version,
        loaded=measured.loaded,
    )
    count = sum(facts.checked.values())
    counted = (f for f in facts.findings if f.checkpoint_id is None or f.checkpoint_id in joined)
    first = next(counted, None)
    if first is None:
        return None, count
    borrowed = first.fact == "tokens" and first.checkpoint_id is not None and not measured.tables
    return (_question(first) if borrowed else _finding(first, first.failure_class)), count


def _finding(fact: FactFinding, name: str | None) -> Finding:
    return Finding(
        failure_class=name,
        checkpoint_id=fact.checkpoint_id,
        role=fact.role,
        segment=fact.segment,
        because=(
            f"the oracle states {fact.fact} {fact.declared}; {fact.evidence} show {fact.measured}",
        ),
    )


def _question(fact: FactFinding) -> Finding:
    asked = (
        "whether the oracle ran other tokens than it states, or the subject's table of embeddings "
        "has its rows in another order"
    )
    found = _finding(fact, None)
    return Finding(
        failure_class=None,
        checkpoint_id=found.checkpoint_id,
        segment=found.segment,
        because=(*found.because, "they were read off the subject's table, the only one at hand"),
        question=asked,
    )
