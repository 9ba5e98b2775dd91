"""The tuples that bind: what Law 5 binds a capture to, and what makes results comparable (Law 10).

One table each; the capture, the scorer, the checks, the leaderboard and the pages read them.
"""

import math
from typing import Any

import msgspec

from cke.schemas.reading import canonical_sha256

MISSING = object()
RUNTIME = (
    *("stack_profile", "numerics_digest", "compiled_extensions_sha256", "jax", "jaxlib"),
    *("xla_flags", "instruction_set", "driver", "gpu_names", "mesh", "threads"),
)
"""The runtime identity: a change of any field mints a new capture and a new key."""
ABSENT_ON = {"jax-cpu": ("driver",)}
"""Runtime fields that a stack has not, by profile; any other must have a value."""


class Field(msgspec.Struct, frozen=True):
    """A bound field: its name, and where a manifest holds it."""

    name: str
    path: str


BOUND = (
    Field("tokenizer identity", "tokenizer"),
    Field("token hash", "token_sha256"),
    Field("context length", "context_length"),
    Field("row count", "rows"),
    Field("score_from", "score_from"),
    Field("scored vocabulary size", "kld_vocab_size"),
    Field("tensor-parallel size", "tensor_parallel_size"),
    Field("eager mode", "enforce_eager"),
    Field("KV cache dtype", "kv_cache_dtype"),
    Field("block of positions", "block_positions"),
    *(Field(f"runtime identity: {name}", f"runtime.{name}") for name in RUNTIME),
)
UNQUANTIZED = ("bfloat16", "float16", "float32")
"""What a KV cache may hold; each side caches in the compute dtype of its own model."""

KEY = (
    *("laws_version", "reference_config_sha256", "suite_id", "token_sha256", "context_length"),
    *("rows", "score_from", "stride", "kld_vocab_size", "tensor_parallel_size", "model_runner"),
    *("kv_cache_dtype", "block_positions"),
    *RUNTIME,
)
"""The fields of the comparability key beside the substituted parameters."""


def value_at(document: Any, path: str) -> Any:
    """Return what a dotted path holds; MISSING where a document has no such field."""
    for name in path.split("."):
        if not isinstance(document, dict) or name not in document:
            return MISSING
        document = document[name]
    return document


def shown(value: Any) -> str:
    """Return a value as a refusal prints it."""
    return "nothing" if value is MISSING else f"`{value}`"


def mismatches(manifest: dict[str, Any], live: dict[str, Any]) -> list[str]:
    """Return every bound field in which a manifest differs from the live settings, both values.

    A field that either lacks is a mismatch. The KV cache dtype is that of each side's own model.
    """
    problems = []
    for field in BOUND:
        theirs, ours = value_at(manifest, field.path), value_at(live, field.path)
        absent = theirs is MISSING or ours is MISSING or _empty(field.path, theirs, manifest)
        same = theirs == ours and type(theirs) is type(ours)
        if field.path == "kv_cache_dtype":
            same = _own_cache(manifest) and _own_cache(live)
        if absent or not same:
            problems.append(
                f"{field.name} (`{field.path}`): the capture has {shown(theirs)}, "
                f"this run {shown(ours)}"
            )
    return problems


def _own_cache(document: dict[str, Any]) -> bool:
    """Whether a side caches, unquantized, in the compute dtype of its own model."""
    cache = document.get("kv_cache_dtype")
    return cache in UNQUANTIZED and cache == document.get("compute_dtype")


def _empty(path: str, value: Any, manifest: dict[str, Any]) -> bool:
    """Whether a field has no value, and its stack does not excuse that."""
    name = path.rpartition(".")[2]
    excused = ABSENT_ON.get(str(value_at(manifest, "runtime.stack_profile")), ())
    return value is None and name not in excused


def key_of(report: dict[str, Any]) -> dict[str, Any]:
    """Return the comparability key of a report, None for what it does not record."""
    runtime = report.get("runtime")
    facts = {**(runtime if isinstance(runtime, dict) else {}), **report}
    key = {name: facts.get(name) for name in KEY}
    return {**key, "substituted": substituted(report)}


def substituted(report: dict[str, Any]) -> list[str] | None:
    """Return the substituted parameters in order, None where a report does not say."""
    listed = report.get("quantization_substitutions")
    if not isinstance(listed, list):
        return None
    return sorted({str(item.get("parameter")) for item in listed if isinstance(item, dict)})


def key_problems(key: Any) -> list[str]:
    """Return the fields of a key that are missing or have no value."""
    if not isinstance(key, dict):
        return ["no comparability key"]
    excused = ABSENT_ON.get(str(key.get("stack_profile")), ())
    names = (*KEY, "substituted")
    empty = [name for name in names if key.get(name) is None and name not in excused]
    return [f"`{name}` has no value in the comparability key" for name in empty]


def section_of(key: dict[str, Any]) -> str:
    """Return the digest by which a leaderboard groups: the key without the substitutions."""
    return canonical_sha256({name: key.get(name) for name in KEY})


def rank_key(key: dict[str, Any]) -> str:
    """Return the digest within which results rank: the whole key."""
    return canonical_sha256({name: key.get(name) for name in (*KEY, "substituted")})


def is_number(value: Any) -> bool:
    """Whether a value is a finite number; a boolean or a text is none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
