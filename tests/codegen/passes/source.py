"""A model in memory: a config and tensor headers."""

from typing import Any, Literal

from cke.schemas.model_source import TensorInfo


class Source:
    """What the compiler reads of a model; `tensors` None is a config alone."""

    def __init__(
        self,
        config: dict[str, Any],
        shapes: dict[str, tuple[int, ...]] | None = None,
        format: Literal["hf", "gguf"] = "hf",
    ) -> None:
        self.format: Literal["hf", "gguf"] = format
        self.name = "model"
        self.config = config
        self.tensors = (
            None
            if shapes is None
            else {name: TensorInfo(shape=shape, storage="F32") for name, shape in shapes.items()}
        )

    def values(self, key: str) -> list[float]:
        raise AssertionError(f"`{key}` has no values here")


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 16,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}


def llama_shapes(layers: int = 2) -> dict[str, tuple[int, ...]]:
    """The tensors of a tied model with the config `LLAMA`."""
    layer = {
        "input_layernorm": (8,),
        "post_attention_layernorm": (8,),
        "self_attn.q_proj": (8, 8),
        "self_attn.k_proj": (4, 8),
        "self_attn.v_proj": (4, 8),
        "self_attn.o_proj": (8, 8),
        "mlp.gate_proj": (12, 8),
        "mlp.up_proj": (12, 8),
        "mlp.down_proj": (8, 12),
    }
    found: dict[str, tuple[int, ...]] = {
        f"model.layers.{index}.{name}.weight": shape
        for index in range(layers)
        for name, shape in layer.items()
    }
    return {**found, "model.embed_tokens.weight": (16, 8), "model.norm.weight": (8,)}
