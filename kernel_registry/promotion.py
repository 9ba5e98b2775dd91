"""A provider put first for one run, so that a gate can measure it; and its promotion for good.

What ships is never changed by a run: the choice holds inside a `with` block. A promotion edits the
contract file, and names the gate report that allows it.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec

from cke.kernel_registry.contract_files import KernelContract

_PREFERRED: ContextVar[str | None] = ContextVar("preferred", default=None)


@contextmanager
def preferring(kernel_id: str) -> Iterator[None]:
    """Rank a provider before all others of its operator, where it passes the filter."""
    token = _PREFERRED.set(kernel_id)
    try:
        yield
    finally:
        _PREFERRED.reset(token)


def preferred() -> str | None:
    """Return the provider that is put first now."""
    return _PREFERRED.get()


def ranked(contracts: Sequence[KernelContract]) -> Sequence[KernelContract]:
    """Return the contracts, with that of the preferred provider raised to the first rank."""
    chosen = _PREFERRED.get()
    if chosen is None:
        return contracts
    top = max(contract.priority for contract in contracts) + 1
    return [
        msgspec.structs.replace(contract, lifecycle="production", priority=top)
        if contract.id == chosen
        else contract
        for contract in contracts
    ]


def promoted_text(text: str, priority: int, evidence: str) -> str:
    """Return a contract file with the provider in production, its priority and its evidence."""
    text = re.sub(r'(?m)^lifecycle = ".*"$', 'lifecycle = "production"', text, count=1)
    text = re.sub(r"(?m)^priority = \d+$", f"priority = {priority}", text, count=1)
    if f'"{evidence}"' in text:
        return text
    return re.sub(r"(?m)^(evidence = \[)\n", rf'\1\n    "{evidence}",\n', text, count=1)
