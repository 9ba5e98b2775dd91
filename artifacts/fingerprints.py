"""FNV-1a 64 fingerprints: of token ids, of files, of the runtime, of the backend.

A file's fingerprint hashes its SHA-256, so that gigabytes cost what SHA-256 costs; `size_bytes` is
the size of what is named. Strings are hashed as UTF-8 with a zero byte after them, numbers as u64.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from cke.schemas.execution_manifest import ExecutionManifest, Fingerprint, RuntimeIdentity
from cke.schemas.run_report import PolicyName

OFFSET = 14695981039346656037
PRIME = 1099511628211
MASK = (1 << 64) - 1
BLOCK = 1 << 22


class Policy(msgspec.Struct, frozen=True):
    """How a token is selected from logits; `penalty` is the decimal that is hashed."""

    name: PolicyName
    mode: str
    penalty: str
    suppression: bool

    @property
    def sha256(self) -> str:
        """The hash that binds a forced prefix to its policy."""
        body = {
            "domain": "lis.selection_policy/v1",
            "selection_mode": self.mode,
            "repetition_penalty_decimal": self.penalty,
            "structural_token_suppression": self.suppression,
        }
        return hashlib.sha256(canonical_bytes(body) + b"\n").hexdigest()


RAW_GREEDY = Policy("raw_greedy", "raw_greedy", "1.0", False)
LIS_GREEDY = Policy("lis_policy_modified_greedy_v1", "policy_modified_greedy", "1.2", True)
POLICIES = {policy.name: policy for policy in (RAW_GREEDY, LIS_GREEDY)}


def fnv1a64(data: bytes, state: int = OFFSET) -> int:
    """Return the FNV-1a hash of the bytes, continued from `state`."""
    for byte in data:
        state = ((state ^ byte) * PRIME) & MASK
    return state


class Hasher:
    """Collects strings and numbers; the size is the sum of what was hashed."""

    def __init__(self) -> None:
        self._state = OFFSET
        self._size = 0

    def add(self, *items: str | int | bool) -> "Hasher":
        """Hash each item in turn."""
        for item in items:
            raw = (
                item.encode() + b"\0" if isinstance(item, str) else int(item).to_bytes(8, "little")
            )
            self._state = fnv1a64(raw, self._state)
            self._size += len(raw)
        return self

    def fingerprint(self, size: int | None = None) -> Fingerprint:
        """Return the fingerprint; `size` names the size of what was hashed by its digest."""
        return Fingerprint(
            hex=f"{self._state:016x}", size_bytes=self._size if size is None else size
        )


def token_digest(ids: Sequence[int]) -> Fingerprint:
    """Return the digest of token ids; the count is hashed and not sized."""
    hasher = Hasher().add(len(ids), *ids)
    return hasher.fingerprint(8 * len(ids))


def file_fingerprint(parts: Iterable[tuple[str, int]]) -> Fingerprint:
    """Return the fingerprint of files, each given as its sha256 and its size."""
    hasher, total = Hasher(), 0
    for digest, size in parts:
        hasher.add(digest)
        total += size
    return hasher.fingerprint(total)


def backend_fingerprint(name: str, threads: int) -> Fingerprint:
    """Return the fingerprint of a backend and its threads."""
    return Hasher().add(name, threads).fingerprint()


def runtime_fingerprint(
    manifest: ExecutionManifest, policy: Policy, forced_prefix: bool
) -> Fingerprint:
    """Return the fingerprint of all that the runtime was told; it is a sum of meanings.

    The tail names the policy that ran and its penalty.
    """
    runtime = manifest.runtime
    hasher = Hasher().add(
        manifest.model.format,
        manifest.model.family,
        manifest.input.mode,
        manifest.backend.name,
        runtime.configured_context,
        runtime.batch_size,
        runtime.generation_limit,
        runtime.thread_count,
        runtime.diagnostics_enabled,
        runtime.perf_enabled,
        runtime.perf_per_token_enabled,
        runtime.layer_checkpoints_enabled,
        runtime.layer_checkpoint_step,
    )
    intra = _intra(runtime)
    hasher.add(*intra)
    hasher.add(forced_prefix, policy.name, f"repetition_penalty={policy.penalty}")
    return hasher.fingerprint()


def _intra(runtime: RuntimeIdentity) -> tuple[str | int, ...]:
    enabled, layer = runtime.intra_layer_checkpoints_enabled, runtime.intra_layer_target_layer
    profile = runtime.diagnostic_capture_profile
    fields = (enabled, layer, profile)
    return tuple(item for item in fields if not isinstance(item, msgspec.UnsetType))


def policy_of(manifest: ExecutionManifest, forced_prefix: bool) -> Policy | None:
    """Return the policy whose runtime fingerprint the manifest carries; None when none fits."""
    found = manifest.runtime.fingerprint
    for policy in POLICIES.values():
        if runtime_fingerprint(manifest, policy, forced_prefix) == found:
            return policy
    return None


def canonical_bytes(value: Any) -> bytes:
    """Return sorted, compact, unescaped UTF-8 JSON, without a newline at its end."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode()


def canonical_sha(value: Any) -> str:
    """Return the SHA-256 of a parsed document; key order on disk does not matter."""
    return hashlib.sha256(canonical_bytes(value)).hexdigest()


def struct_sha(value: msgspec.Struct) -> str:
    """Return the canonical SHA-256 of a struct."""
    return canonical_sha(msgspec.to_builtins(value))


def ids_sha(ids: Sequence[int]) -> str:
    """Return the SHA-256 of the canonical JSON array of token ids."""
    return canonical_sha(list(ids))
