"""Which live oracle answers for which family, and the config that a GGUF file can say."""

from typing import Any

from cke.oracles.points import ARCHITECTURES, family_names
from tests.models import FAMILIES

ENCODERS = ("bert", "albert", "dinov2")
"""Families without decode steps."""
MODEL_TYPES = {"gemma3": "gemma3_text", "granite_hybrid": "granitemoehybrid"}
SAYABLE: dict[str, dict[str, Any]] = {
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3": {"query_pre_attn_scalar": 16},
    "mistral": {"sliding_window": 64},
    "qwen3_moe": {"norm_topk_prob": True},
}
"""What llama.cpp fixes in its code: tests/oracles/test_llamacpp.py shows the refusals."""


def _served(names: Any) -> tuple[str, ...]:
    return tuple(family for family in FAMILIES if MODEL_TYPES.get(family, family) in names)


PYTORCH: dict[str, dict[str, Any]] = {family: {} for family in _served(family_names())}
LLAMACPP = {family: SAYABLE.get(family, {}) for family in _served(ARCHITECTURES)}
SERVED = {"pytorch": PYTORCH, "llamacpp": LLAMACPP}
CELLS = [(oracle, family) for oracle, served in SERVED.items() for family in served]
REFUSED = [(o, f) for o in SERVED for f in FAMILIES if (o, f) not in CELLS]
