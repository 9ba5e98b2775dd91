"""Fuzz targets of the packet reader, shared by the Hypothesis tests and the coverage-guided run."""

import copy
import json
from pathlib import Path
from typing import Any

from cke.attention_packet.analyze import Outcome, analyze
from cke.attention_packet.report import encode_report
from tests.attention_packet.build import example

EXAMPLE = example()
EDGES: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 4, 16, 48, 256, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63, 2**64),
    *(0x7F80_0000, 0x3E80_0000, 0x8000_0000, True, False, None, 1.5, "", "\0", "../x", "/", "."),
    *("queries.bin", "packet.json", "output.bin", "float16", "bfloat16", "float32", "big", "full"),
    *("paged", "contiguous", "contiguous_sdpa", "decode", "confirmed", "discarded", "completed"),
    *([], {}, [1, 4, 1, 4], [16, 4, 4, 1], [1, 2, 3, 4], {"forward_failed": 1}),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place below the top of a JSON value."""
    items = list(value.items()) if isinstance(value, dict) else []
    items += list(enumerate(value)) if isinstance(value, list) else []
    found = [(*path, key) for key, _ in items]
    return found + [place for key, item in items for place in places(item, (*path, key))]


def replace(value: Any, place: tuple[Any, ...], item: Any) -> None:
    """Put `item` at the place."""
    for key in place[:-1]:
        value = value[key]
    value[place[-1]] = copy.deepcopy(item)


def check_outcome(found: Outcome) -> None:
    """One of the three outcomes, with its exit code, as strict JSON."""
    analysis = found.analysis
    report = json.loads(encode_report(analysis), parse_constant=_no_constant)
    assert report["status"] in ("analyzed", "inconclusive", "refused")
    assert (report["refusal"] is not None) == (report["status"] == "refused")
    assert bool(report["inconclusiveReasons"]) == (report["status"] == "inconclusive")
    assert found.exit_code == (0 if analysis.geometry else 2)
    if report["status"] == "analyzed":
        assert report["originalQueryReference"] is not None


def _no_constant(text: str) -> None:
    raise AssertionError(f"the report holds {text}")


def fuzz_bytes(folder: Path, data: bytes) -> None:
    """The input is packet.json."""
    folder.joinpath("packet.json").write_bytes(data)
    check_outcome(analyze(folder / "packet.json"))


def fuzz_values(folder: Path, data: bytes) -> None:
    """Three bytes choose a document, a place and a value."""
    builder = copy.deepcopy(EXAMPLE)
    for start in range(0, min(len(data), 18) - 2, 3):
        document = builder.packet if data[start] & 1 else builder.snapshot
        found = places(document)
        place = found[(data[start] >> 1 | data[start + 1] << 7) % len(found)]
        replace(document, place, EDGES[data[start + 2] % len(EDGES)])
    if not isinstance(builder.packet.get("metadata"), dict):
        builder.packet["metadata"] = {}
    check_outcome(analyze(builder.write_documents(folder)))
