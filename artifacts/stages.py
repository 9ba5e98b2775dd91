"""The tables of localisation: stages of a layer, layers that are asked for, families."""

import msgspec

CLOSING_BOUNDARY = "parent:layer_output"
ENTRY_BOUNDARY = "selected_layer_entry"


class Stage(msgspec.Struct, frozen=True):
    """One stage of a layer: the id that circuits give its checkpoint, and its public name."""

    id: str
    public_name: str


STAGES = (
    Stage("layer_input", "Layer input"),
    Stage("attention_norm_output", "Pre-attention RMSNorm output"),
    Stage("query_projection_output", "Q projection output"),
    Stage("key_projection_output", "K projection output"),
    Stage("value_projection_output", "V projection output"),
    Stage("rope_query_output", "RoPE-applied Q"),
    Stage("rope_key_output", "RoPE-applied K"),
    Stage("attention_scores", "Attention pre-softmax scores"),
    Stage("attention_probabilities", "Attention softmax output"),
    Stage("attention_context", "Attention context"),
    Stage("attention_output_projection", "Attention output projection"),
    Stage("post_attention_residual", "Post-attention residual"),
    Stage("mlp_norm_output", "Pre-MLP RMSNorm output"),
    Stage("mlp_gate_projection", "MLP gate projection"),
    Stage("mlp_up_projection", "MLP up projection"),
    Stage("mlp_gated_activation", "MLP gated activation"),
    Stage("mlp_down_projection", "MLP down projection"),
)
STAGE_IDS = tuple(stage.id for stage in STAGES)
PUBLIC_NAMES = {stage.id: stage.public_name for stage in STAGES}

LLAMA = "llama3_decoder"
FAMILIES = {"llama": LLAMA, "qwen3": "qwen3_dense_decoder"}
"""Circuits by the family that artifacts name; any other circuit is `<circuit>_decoder`."""

LOCALISED = frozenset({LLAMA})
"""Families whose layer traces carry a layout, and which alone can be localised."""


def family_of(circuit: str) -> str:
    """Return the family name of a circuit."""
    return FAMILIES.get(circuit, f"{circuit}_decoder")


def requested_layers(total: int) -> tuple[int, ...]:
    """Return the layers whose outputs are asked for, of `total`."""
    wanted = {0, 1, 2, 4, 6, total // 4, total // 2, 3 * total // 4, total - 1}
    return tuple(sorted(layer for layer in wanted if 0 <= layer < total))


def layer_coordinate(layer: int) -> str:
    """Return the name of a layer's output."""
    return f"layer.{layer}.output"


def layer_of(coordinate: str) -> int | None:
    """Return the layer of `layer.<n>.output`, None for any other text."""
    parts = coordinate.split(".")
    if len(parts) != 3 or parts[0] != "layer" or parts[2] != "output" or not parts[1].isdecimal():
        return None
    return int(parts[1]) if str(int(parts[1])) == parts[1] else None
