"""The command of a packet names the call of the first divergent attention, or there is none."""

import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cke.api.packet_bridge import export_command
from cke.runtime.schedule import CaptureRequest
from cke.schemas.manifest import Manifest
from cke.schemas.numerical_report import Metrics, Worst
from tests.xray import reports

contract = pytest.mark.contract
PROMPT = CaptureRequest(tokens=((1, 2, 3, 4), (5, 6, 7)), forced=((8, 9), (10, 11)))
OUT = Path("a b")


def manifest(circuit: str, repository: Path) -> Manifest:
    path = repository / "generated" / circuit / "manifest.json"
    return msgspec.json.decode(path.read_bytes(), type=Manifest)


def command(
    repository: Path, request: CaptureRequest = PROMPT, circuit: str = "llama", **changes: Any
) -> list[str] | None:
    """The words of the command for a divergence of the attention of layer 2."""
    given = {
        "checkpoint_id": "layer.2.attention.attention_context",
        "layer": 2,
        "phase": "decode",
        "segment": 1,
        "operator": "sdpa",
        "metrics": None,
    }
    found = msgspec.structs.replace(reports.divergence(), **{**given, **changes})
    report = msgspec.structs.replace(reports.finding(), first_divergence=found)
    flags = {"model": "m n", "circuit": None, "dtype": "bfloat16"}
    text = export_command(report, manifest(circuit, repository), request, flags, OUT)
    return None if text is None else shlex.split(text)


def worst_in_row(row: int) -> Metrics:
    worst = Worst(coordinate={"B": row, "T": 0}, subject=1.0, oracle=2.0)
    return msgspec.structs.replace(reports.metrics(0.1), worst=worst)


@contract("PKT-68")
def test_decode_forward_is_that_step_with_its_tokens(repository: Path) -> None:
    assert command(repository, segment=2) == [
        *("cke", "packet", "export", "--model", "m n", "--dtype", "bfloat16"),
        *("--tokens", "1 2 3 4", "--layer", "2", "--step", "1", "--forced", "8 10"),
        *("--out", "a b/packet"),
    ]


def words_between(words: list[str] | None) -> list[str]:
    assert words is not None
    return words[words.index("--tokens") : words.index("--out")]


def test_row_is_the_one_that_differs_most(repository: Path) -> None:
    words = command(repository, metrics=worst_in_row(1))
    assert words_between(words) == shlex.split("--tokens '5 6 7' --layer 2 --step 0 --forced 9")


def test_prefill_forward_is_followed_by_the_token_after_it(repository: Path) -> None:
    chunked = msgspec.structs.replace(PROMPT, segments=(2, 4))
    for segment, expected in (
        (0, "--tokens '1 2' --layer 2 --step 0 --forced 3"),
        (1, "--tokens '1 2 3 4' --layer 2 --step 0 --forced 8"),
    ):
        words = command(repository, chunked, phase="prefill", segment=segment)
        assert words_between(words) == shlex.split(expected)
    alone = CaptureRequest(tokens=((1, 2),))
    words = command(repository, alone, phase="prefill", segment=0)
    assert words_between(words) == shlex.split("--tokens '1 2' --layer 2 --step 0")


def test_open_finding_at_an_attention_has_a_command(repository: Path) -> None:
    assert command(repository, operator=None) is not None
    other = {"operator": None, "checkpoint_id": "layer.2.attention.rope_query_output"}
    assert command(repository, **other) is None
    assert command(repository, operator="rope") is None
    assert command(repository, layer=None) is None
    assert command(repository, segment=None) is None


@contract("PKT-69")
def test_layer_that_no_packet_holds_has_no_command(repository: Path) -> None:
    layers = {
        layer: command(repository, circuit="gemma3", layer=layer) is not None for layer in range(6)
    }
    assert set(layers.values()) == {True, False}
    assert command(repository, circuit="gemma2") is None
    later = msgspec.structs.replace(PROMPT, first_position=7)
    assert command(repository, later) is None
