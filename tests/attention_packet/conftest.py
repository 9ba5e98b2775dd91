"""What every packet test may use."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cke.attention_packet.analyze import Outcome
from tests.attention_packet.build import PacketBuilder, run

Refused = Callable[[PacketBuilder], str]


@pytest.fixture
def refused(tmp_path: Path) -> Refused:
    """Analyse a packet that must be refused, and return `code: path: message`."""

    def check(builder: PacketBuilder) -> str:
        return refusal_text(run(builder, tmp_path / "packet"))

    return check


@pytest.fixture
def outcome(tmp_path: Path) -> Callable[[PacketBuilder], Outcome]:
    """Analyse a packet in a folder of its own."""
    return lambda builder: run(builder, tmp_path / "packet")


def refusal_text(found: Outcome) -> str:
    analysis = found.analysis
    assert (analysis.status, found.exit_code) == ("refused", 2), analysis.inconclusive_reasons
    assert analysis.original_query_reference is None
    assert analysis.tensor_nonfinite is None
    assert analysis.refusal is not None
    refusal = analysis.refusal
    return ": ".join(part for part in (refusal.code, refusal.path, refusal.message) if part)
