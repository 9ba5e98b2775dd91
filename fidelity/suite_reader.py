"""Reading a suite: every hash is derived again, and nothing is taken on trust.

Non-goal: text. A context without token IDs is refused; no tokenizer is reached from here.
"""

from pathlib import Path
from typing import Any, Literal

import msgspec

from cke.fidelity.digests import token_sha256
from cke.fidelity.refusal import refuse
from cke.fidelity.suite import Context, partition_hashes, partition_ids
from cke.schemas.reading import convert, read_json

Selection = Literal["all", "analysis", "qualification"]


class Suite(msgspec.Struct, frozen=True):
    """A verified suite."""

    manifest: dict[str, Any]
    contexts: tuple[Context, ...]

    def selected(self, partition: Selection) -> tuple[Context, ...]:
        """Return the contexts of a partition, in order."""
        kept = [item for item in self.contexts if partition in ("all", item.partition)]
        return tuple(kept)

    def token_sha256(self, partition: Selection) -> str:
        """Return the hash of a partition's tokens, derived from the IDs themselves."""
        return token_sha256(item.token_ids for item in self.selected(partition))


def load_suite(folder: Path) -> Suite:
    """Return the suite of a folder, verified; whatever differs is CKE870, all at once."""
    manifest = read_json(folder / "manifest.json")
    if not isinstance(manifest, dict) or not isinstance(manifest.get("contexts"), list):
        refuse("CKE870", "expected a suite's manifest", file="manifest.json")
    contexts = tuple(
        convert(_object(folder, row), Context, folder / str(row.get("file")))
        for row in manifest["contexts"]
    )
    problems = [*_context_problems(manifest, contexts), *_manifest_problems(manifest, contexts)]
    listed = read_json(folder / "partitions.json")
    if listed != partition_ids(contexts):
        problems.append("`partitions.json` differs from the contexts' own partitions")
    if problems:
        refuse("CKE870", problems, file=folder.name)
    return Suite(manifest, contexts)


def _object(folder: Path, row: Any) -> Any:
    name = row.get("file") if isinstance(row, dict) else None
    if not isinstance(name, str) or not name.startswith("tokens/") or ".." in name:
        refuse("CKE870", f"expected a context's file under `tokens/`, got `{name}`")
    value = read_json(folder / name)
    if isinstance(value, dict) and "token_ids" not in value:
        refuse("CKE870", "expected stored token IDs; text is never tokenized here", file=name)
    return value


def _context_problems(manifest: dict[str, Any], contexts: tuple[Context, ...]) -> list[str]:
    problems = []
    length, limit = manifest.get("context_length"), manifest["tokenizer"]["unpadded_vocab_size"]
    for row, item in zip(manifest["contexts"], contexts, strict=True):
        derived = token_sha256([item.token_ids])
        if not derived == item.token_sha256 == row.get("token_sha256"):
            problems.append(f"`{item.context_id}` has other token IDs than its hash says")
        same = ("context_id", "stratum", "source_key", "source_cluster_id")
        if any(row.get(key) != getattr(item, key) for key in same):
            problems.append(f"`{item.context_id}` differs from its row of the manifest")
        if len(item.token_ids) != length or row.get("token_count") != length:
            problems.append(f"`{item.context_id}` expects {length} IDs, got {len(item.token_ids)}")
        if any(not 0 <= token < limit for token in item.token_ids):
            problems.append(f"`{item.context_id}` holds an ID outside the real vocabulary")
    return problems


def _manifest_problems(manifest: dict[str, Any], contexts: tuple[Context, ...]) -> list[str]:
    problems = []
    names = [item.context_id for item in contexts]
    if len(set(names)) != len(names) or names != sorted(names):
        problems.append("context IDs are not unique and in order")
    hashes = partition_hashes(contexts)
    if manifest.get("partition_token_sha256") != hashes:
        problems.append("the partitions' token hashes differ from those of their IDs")
    if manifest.get("token_sha256") != hashes["all"]:
        problems.append("`token_sha256` differs from that of the IDs")
    if manifest.get("context_count") != len(contexts):
        problems.append(f"`context_count` expects {len(contexts)}")
    clusters = {
        name: {item.source_cluster_id for item in contexts if item.partition == name}
        for name in ("analysis", "qualification")
    }
    shared = clusters["analysis"] & clusters["qualification"]
    if shared:
        problems.append(f"the partitions share the cluster `{min(shared)}`")
    for row in manifest.get("strata", []):
        count = sum(item.stratum == row["key"] for item in contexts)
        if row["contexts"] != count:
            problems.append(f"stratum `{row['key']}` counts {row['contexts']}, has {count}")
    return problems
