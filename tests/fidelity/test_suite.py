"""Suites: built once, verified always."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from cke.errors import CkeError
from cke.fidelity.digests import token_sha256
from cke.fidelity.neighbours import duplicates
from cke.fidelity.suite import builtin_texts, read_texts
from cke.fidelity.suite_reader import load_suite
from tests.fidelity.conftest import tiny_suite


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_suite(tmp_path / "suite")
    return tmp_path / "suite"


def edit(path: Path, change: Any) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


@pytest.mark.contract("LAW-3.4")
def test_token_hash_is_that_of_joined_decimal_ids() -> None:
    known = "8a6ae15122001229edb8866f56e342af12ae8187203c3e3b33931743e7c0c48d"
    assert token_sha256([[1, 2, 3]]) == known == hashlib.sha256(b"1,2,3").hexdigest()
    assert token_sha256([[1], [2, 3]]) == known


@pytest.mark.contract("LAW-3.4")
def test_changed_token_is_refused(folder: Path) -> None:
    def change(value: Any) -> None:
        value["token_ids"][0] = (value["token_ids"][0] + 1) % 61

    edit(folder / "tokens" / "context-0003.json", change)
    with pytest.raises(CkeError) as error:
        load_suite(folder)
    assert "error[CKE870]: `context-0003` has other token IDs than its hash says" in str(
        error.value
    )


@pytest.mark.contract("LAW-3.1")
def test_context_with_text_and_no_ids_is_refused(folder: Path) -> None:
    def change(value: Any) -> None:
        value["text"] = "tokenize me"
        del value["token_ids"]

    edit(folder / "tokens" / "context-0000.json", change)
    with pytest.raises(CkeError, match="expected stored token IDs; text is never tokenized here"):
        load_suite(folder)


MANIFEST_CHANGES = {
    "the partitions' token hashes": lambda m: m["partition_token_sha256"].update(analysis="0"),
    "`token_sha256` differs": lambda m: m.update(token_sha256="0" * 64),
    "`context_count` expects 24": lambda m: m.update(context_count=25),
    "differs from its row": lambda m: m["contexts"][0].update(stratum="other"),
    "stratum `chinese` counts 9": lambda m: m["strata"][0].update(contexts=9),
    "expects 18 IDs, got 17": lambda m: m.update(context_length=18),
    "outside the real vocabulary": lambda m: m["tokenizer"].update(unpadded_vocab_size=9),
}


@pytest.mark.contract("LAW-3.4", "LAW-11.1")
@pytest.mark.parametrize("expected", sorted(MANIFEST_CHANGES))
def test_manifest_that_differs_from_the_contexts_is_refused(folder: Path, expected: str) -> None:
    edit(folder / "manifest.json", MANIFEST_CHANGES[expected])
    with pytest.raises(CkeError, match=r"error\[CKE870\]") as error:
        load_suite(folder)
    assert expected in str(error.value)


@pytest.mark.contract("LAW-11.1")
def test_partitions_share_no_context_and_no_cluster(folder: Path) -> None:
    suite = load_suite(folder)
    parts = {name: suite.selected(name) for name in ("analysis", "qualification")}
    assert len(parts["analysis"]) + len(parts["qualification"]) == 24
    assert parts["qualification"]
    clusters = [{item.source_cluster_id for item in found} for found in parts.values()]
    assert not clusters[0] & clusters[1]

    def change(value: Any) -> None:
        other = next(i for i in parts["qualification"] if i.context_id != value["context_id"])
        value["source_cluster_id"] = other.source_cluster_id

    name = parts["analysis"][0].context_id
    edit(folder / "tokens" / f"{name}.json", change)
    with pytest.raises(CkeError, match="the partitions share the cluster"):
        load_suite(folder)


@pytest.mark.contract("LAW-15.13")
def test_shipped_texts_are_a_dozen_strata_with_licences() -> None:
    texts = builtin_texts()
    kinds = {"encyclopedic", "mathematics", "source_code", "dialogue", "chinese"}
    assert kinds | {"structured_data", "tool_calls"} <= set(texts.strata)
    assert len(texts.strata) == 12
    assert all(source.licence and source.revision for source in texts.sources.values())
    size = sum(len(d.text.encode()) for found in texts.strata.values() for d in found)
    assert 150_000 < size < 260_000


def test_text_without_a_source_is_refused(tmp_path: Path) -> None:
    tmp_path.joinpath("sources.json").write_text("{}")
    document = {"source": "web", "cluster": "a", "text": "b"}
    tmp_path.joinpath("prose.json").write_text(json.dumps([document]))
    with pytest.raises(CkeError, match=r"error\[CKE871\]: no licence is recorded for `web`"):
        read_texts(tmp_path)


def test_stratum_that_is_too_small_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CkeError, match=r"error\[CKE871\]: stratum `\w+` has \d+ contexts of 4000"):
        tiny_suite(tmp_path / "suite", length=4000, contexts=120)


def test_near_duplicate_is_found_and_a_different_text_is_not() -> None:
    words = [f"word{i}" for i in range(400)]
    text = " ".join(words)
    nearly = " ".join([*words[:-3], "a", "b", "c"])
    other = " ".join(reversed(words))
    found = duplicates([text, other, nearly])
    assert list(found) == [2]
    assert found[2][0] == 0
