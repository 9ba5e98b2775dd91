"""Suites: contexts of frozen token IDs, stratified, without near-duplicates, in two partitions.

Building tokenizes, once; reading never does. A suite is a folder of `manifest.json`, one file per
context, `sources.json`, `partitions.json` and `near-duplicates.json`.
"""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from cke.errors.files import folder_atomically
from cke.fidelity.digests import token_sha256
from cke.fidelity.neighbours import duplicates
from cke.fidelity.refusal import refuse

Partition = Literal["analysis", "qualification"]
Encode = Callable[[str], list[int]]
FORMAT_VERSION = 1
HASH_METHOD = "sha256 of the decimal IDs joined by commas, contexts in order of ID"
QUALIFICATION = 4
"""One context of so many is for qualification."""
SENTINELS = 16


class TokenizerIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Which tokenizer gave the IDs; `vocab_size` is the head's rows, the other its real tokens."""

    name: str
    kind: str
    vocab_size: int
    unpadded_vocab_size: int
    vocab_sha256: str
    special_tokens: dict[str, int | list[int] | None]


class Document(msgspec.Struct, frozen=True):
    """A text; documents of one cluster are not independent of each other."""

    source: str
    cluster: str
    text: str


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where texts come from, at which revision, under which licence."""

    package: str
    revision: str
    licence: str
    sha256: str | None = None


class Texts(msgspec.Struct, frozen=True):
    """Documents by stratum, and their sources."""

    strata: dict[str, tuple[Document, ...]]
    sources: dict[str, Source]


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """One frozen context, as its file holds it."""

    context_id: str
    stratum: str
    source_key: str
    source_cluster_id: str
    partition: Partition
    sentinel: bool
    token_ids: tuple[int, ...]
    token_sha256: str


class SuiteRequest(msgspec.Struct, frozen=True, kw_only=True):
    """How many contexts of how many tokens, and what the recipe is called."""

    contexts: int
    length: int
    recipe: str = "small-1"


def builtin_texts() -> Texts:
    """Return the texts that ship with the package: a dozen strata of about 17 kB each."""
    from importlib.resources import files

    folder = Path(str(files("cke.fidelity").joinpath("texts")))
    return read_texts(folder)


def read_texts(folder: Path) -> Texts:
    """Return the texts of a folder: one JSON file per stratum, and `sources.json`."""
    from cke.schemas.reading import convert, read_json

    path = folder / "sources.json"
    sources = convert(read_json(path), dict[str, Source], path)
    strata = {
        item.stem: convert(read_json(item), tuple[Document, ...], item)
        for item in sorted(folder.glob("*.json"))
        if item != path
    }
    unknown = {d.source for documents in strata.values() for d in documents} - set(sources)
    if unknown:
        refuse("CKE871", f"no licence is recorded for `{min(unknown)}`", file=path.name)
    return Texts(strata, sources)


def build_suite(
    texts: Texts,
    encode: Encode,
    tokenizer: TokenizerIdentity,
    request: SuiteRequest,
    out: Path,
    *,
    created_utc: str,
) -> dict[str, Any]:
    """Write the suite to the new folder `out` and return its manifest."""
    kept, removed = _without_duplicates(texts)
    chosen: list[Context] = []
    wanted = _shares(request.contexts, sorted(kept))
    for stratum, documents in sorted(kept.items()):
        windows = _windows(stratum, documents, encode, request.length)
        if len(windows) < wanted[stratum]:
            refuse(
                "CKE871",
                f"stratum `{stratum}` has {len(windows)} contexts of {request.length} tokens, "
                f"expected {wanted[stratum]}",
            )
        chosen += _partitioned(_by_hash(windows)[: wanted[stratum]])
    contexts = [_named(item, index) for index, item in enumerate(chosen)]
    manifest = manifest_of(contexts, tokenizer, request, wanted, created_utc)
    files = {
        "manifest.json": manifest,
        "sources.json": texts.sources,
        "partitions.json": partition_ids(contexts),
        "near-duplicates.json": removed,
    }
    with folder_atomically(out) as folder:
        folder.joinpath("tokens").mkdir()
        for name, value in files.items():
            folder.joinpath(name).write_bytes(pretty(value))
        for item in contexts:
            folder.joinpath("tokens", f"{item.context_id}.json").write_bytes(pretty(item))
    return manifest


def _without_duplicates(texts: Texts) -> tuple[dict[str, list[Document]], dict[str, Any]]:
    """The documents without those that nearly repeat an earlier one, and which those are."""
    flat = [(stratum, item) for stratum, items in sorted(texts.strata.items()) for item in items]
    found = duplicates([item.text for _, item in flat])
    kept: dict[str, list[Document]] = {stratum: [] for stratum in texts.strata}
    for index, (stratum, item) in enumerate(flat):
        if index not in found:
            kept[stratum].append(item)
    rows = [
        {"stratum": flat[i][0], "document": i, "repeats": j, "jaccard": score}
        for i, (j, score) in sorted(found.items())
    ]
    return kept, {"method": "MinHash, 128 permutations, shingles of 5", "removed": rows}


def _shares(total: int, strata: Sequence[str]) -> dict[str, int]:
    each, more = divmod(total, len(strata))
    return {name: each + (index < more) for index, name in enumerate(strata)}


def _windows(
    stratum: str, documents: Sequence[Document], encode: Encode, length: int
) -> list[Context]:
    """Windows of `length` tokens; no two of different clusters share a document."""
    windows: list[Context] = []
    ids: list[int] = []
    first: Document | None = None
    for item in documents:
        first = first or item
        ids += encode(item.text)
        while len(ids) >= length:
            windows.append(_window(stratum, first, ids[:length]))
            ids = ids[length:]
            if len(ids) < length:
                ids, first = [], None
    return windows


def _window(stratum: str, first: Document | None, ids: list[int]) -> Context:
    assert first is not None, "a window has a document"
    return Context(
        context_id="",
        stratum=stratum,
        source_key=first.source,
        source_cluster_id=f"{stratum}:{first.source}:{first.cluster}",
        partition="analysis",
        sentinel=False,
        token_ids=tuple(ids),
        token_sha256=token_sha256([ids]),
    )


def _by_hash(windows: list[Context]) -> list[Context]:
    return sorted(windows, key=lambda item: item.token_sha256)


def _partitioned(windows: list[Context]) -> list[Context]:
    """The windows with partitions: whole clusters, in an order that only their names decide."""
    clusters = sorted(
        {item.source_cluster_id for item in windows},
        key=lambda name: hashlib.sha256(name.encode()).hexdigest(),
    )
    chosen: set[str] = set()
    count = 0
    for name in clusters[: len(clusters) - 1]:
        if count * QUALIFICATION < len(windows):
            chosen.add(name)
            count += sum(item.source_cluster_id == name for item in windows)
    return [
        msgspec.structs.replace(
            item,
            partition="qualification" if item.source_cluster_id in chosen else "analysis",
            sentinel=index % SENTINELS == 0,
        )
        for index, item in enumerate(windows)
    ]


def _named(item: Context, index: int) -> Context:
    return msgspec.structs.replace(item, context_id=f"context-{index:04d}")


def partition_ids(contexts: Sequence[Context]) -> dict[str, list[str]]:
    """Return the context IDs of each partition, and the sentinels."""
    found: dict[str, list[str]] = {"analysis": [], "qualification": [], "sentinels": []}
    for item in contexts:
        found[item.partition].append(item.context_id)
        if item.sentinel:
            found["sentinels"].append(item.context_id)
    return found


def partition_hashes(contexts: Sequence[Context]) -> dict[str, str]:
    """Return the token hash of all contexts and of each partition."""
    parts = {
        "all": list(contexts),
        "analysis": [item for item in contexts if item.partition == "analysis"],
        "qualification": [item for item in contexts if item.partition == "qualification"],
    }
    return {name: token_sha256(c.token_ids for c in items) for name, items in parts.items()}


def manifest_of(
    contexts: Sequence[Context],
    tokenizer: TokenizerIdentity,
    request: SuiteRequest,
    wanted: dict[str, int],
    created_utc: str,
) -> dict[str, Any]:
    """Return the manifest of a suite."""
    hashes = partition_hashes(contexts)
    scored = request.length - 1
    return {
        "kind": "cke-fidelity-suite",
        "suite_id": f"{request.recipe}-{len(contexts)}x{request.length}-{hashes['all'][:12]}",
        "recipe_id": request.recipe,
        "format_version": FORMAT_VERSION,
        "created_utc": created_utc,
        "context_count": len(contexts),
        "context_length": request.length,
        "scored_positions_per_context": scored,
        "total_scored_positions": scored * len(contexts),
        "tokenizer": msgspec.to_builtins(tokenizer),
        "token_sha256": hashes["all"],
        "token_hash_method": HASH_METHOD,
        "partition_token_sha256": hashes,
        "source_cluster_count": len({item.source_cluster_id for item in contexts}),
        "strata": [
            {
                "key": name,
                "label": name.replace("_", " "),
                "requested": count,
                "contexts": sum(item.stratum == name for item in contexts),
            }
            for name, count in sorted(wanted.items())
        ],
        "contexts": [
            {
                "context_id": item.context_id,
                "file": f"tokens/{item.context_id}.json",
                "stratum": item.stratum,
                "source_key": item.source_key,
                "source_cluster_id": item.source_cluster_id,
                "token_count": len(item.token_ids),
                "scored_positions": len(item.token_ids) - 1,
                "token_sha256": item.token_sha256,
            }
            for item in contexts
        ],
    }


def pretty(value: Any) -> bytes:
    """Return indented JSON with keys in their order, and a newline at the end."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"
