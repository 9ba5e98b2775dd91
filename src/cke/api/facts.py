"""What a run needs to know of a model beside its circuit: dtype, context and end tokens."""

from typing import Any

from cke.errors import CkeError, Diagnostic, Note
from cke.runtime.weights.files import ModelFiles, generation_config

DTYPES = {"float32": "f32", "f32": "f32", "bfloat16": "bf16", "bf16": "bf16"}
CONTEXT_KEYS = ("max_position_embeddings", "n_positions")
"""Where a config says how many positions the model takes."""


def run_dtype(dtype: str) -> str:
    """Return the run dtype as the IR spells it."""
    if dtype not in DTYPES:
        raise CkeError(
            Diagnostic(
                code="CKE608",
                message=f"`dtype` expects float32 | bfloat16, got `{dtype}`",
                notes=(Note("quantised and f16 files are read into the run dtype", label="help"),),
            )
        )
    return DTYPES[dtype]


def context_length(files: ModelFiles) -> int | None:
    """Return the most positions that the model's config allows, None when it does not say."""
    config = files.config
    if files.format == "gguf":
        found = config.get(f"{config.get('general.architecture')}.context_length")
        return found if isinstance(found, int) else None
    return next((config[key] for key in CONTEXT_KEYS if isinstance(config.get(key), int)), None)


def end_tokens(files: ModelFiles) -> tuple[int, ...]:
    """Return the end tokens that the config, or else the generation config, names."""
    for config in (generation_config(files), files.config):
        found = _ids(config.get("eos_token_id", config.get("tokenizer.ggml.eos_token_id")))
        if found:
            return found
    return ()


def _ids(value: Any) -> tuple[int, ...]:
    items = value if isinstance(value, list) else [value]
    return tuple(sorted(item for item in items if isinstance(item, int)))
