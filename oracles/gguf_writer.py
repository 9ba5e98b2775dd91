"""Write a model folder as a GGUF file that llama.cpp loads, in f32, f16 or bf16.

Names come from the gguf package's own tensor map, and the layouts (rope pairs, norm offset,
stacked experts) are those of llama.cpp's converters as facts; nothing here reads a circuit, so
that an oracle run from the file is independent of the subject's bindings.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
from safetensors import safe_open

from cke.errors import CkeError, Diagnostic, Note
from cke.oracles.base import Array
from cke.oracles.points import ARCHITECTURES

ROPE_PAIRS = {"llama"}
"""Architectures whose files store q and k in rope pairs."""
NORM_PLUS_ONE = {"gemma2", "gemma3"}
"""Architectures whose files store the weight of a norm with the 1 that is added to it."""
LARGEST = {"gemma2": 46, "gemma3": 62}
"""Layers of the size that llama.cpp scales by hidden size over heads."""
FILE_TYPES = {
    "f32": (np.dtype(np.float32), gguf.GGMLQuantizationType.F32),
    "f16": (np.dtype(np.float16), gguf.GGMLQuantizationType.F16),
    "bf16": (np.dtype(ml_dtypes.bfloat16), gguf.GGMLQuantizationType.BF16),
}


def write_gguf(folder: Path, target: Path, dtype: str = "f32") -> Path:
    """Write the folder's model to `target`; an architecture without a mapping is CKE713."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    model_type = config["model_type"]
    if model_type not in ARCHITECTURES:
        known = ", ".join(f"`{name}`" for name in ARCHITECTURES)
        raise CkeError(
            Diagnostic(
                code="CKE713",
                file=str(folder / "config.json"),
                path="$.model_type",
                message=f"no GGUF mapping for `{model_type}`: expected one of {known}",
            )
        )
    architecture = ARCHITECTURES[model_type]
    refuse_untold(folder, config, architecture)
    temporary = target.with_name(target.name + ".part")
    writer = gguf.GGUFWriter(temporary, architecture)
    _metadata(writer, config, architecture)
    for name, array in _tensors(folder, config, architecture):
        add_tensor(writer, name, array, dtype)
    return finish(writer, temporary, target)


def refuse_untold(folder: Path, config: dict[str, Any], architecture: str) -> None:
    """Raise CKE713 for a value that llama.cpp fixes in its code and a file cannot change."""
    if architecture in NORM_PLUS_ONE:
        heads, width = config["num_attention_heads"], config["head_dim"]
        if config["num_hidden_layers"] == LARGEST[architecture]:
            width = config["hidden_size"] // heads
        fixed = ("query_pre_attn_scalar", config["query_pre_attn_scalar"], width)
    elif architecture == "qwen3moe":
        fixed = ("norm_topk_prob", config["norm_topk_prob"], True)
    else:
        return
    key, value, computed = fixed
    if value != computed:
        raise CkeError(
            Diagnostic(
                code="CKE713",
                file=str(folder / "config.json"),
                path=f"$.{key}",
                message=f"llama.cpp computes `{architecture}` with {computed} whatever the file "
                f"says: expected that, got {value}",
                notes=(Note("use the pytorch or the reference oracle", label="help"),),
            )
        )


def finish(writer: gguf.GGUFWriter, temporary: Path, target: Path) -> Path:
    """Write everything to `temporary` and give it the name `target`."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    temporary.replace(target)
    return target


def add_tensor(writer: gguf.GGUFWriter, name: str, array: Array, dtype: str) -> None:
    """Add a tensor in `dtype`; vectors and router weights stay f32, as llama.cpp wants them."""
    kept = "f32" if array.ndim == 1 or name.endswith("ffn_gate_inp.weight") else dtype
    numpy_dtype, kind = FILE_TYPES[kept]
    data = np.ascontiguousarray(array.astype(numpy_dtype))
    if kept == "bf16":
        writer.add_tensor(
            name, data.view(np.uint8), raw_shape=(*data.shape[:-1], data.shape[-1] * 2),
            raw_dtype=kind,
        )  # fmt: skip
        return
    writer.add_tensor(name, data)


def _metadata(writer: gguf.GGUFWriter, config: dict[str, Any], architecture: str) -> None:
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_rope_dimension_count(width)
    writer.add_tokenizer_model("no_vocab")
    _rope_metadata(writer, config, architecture)
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        writer.add_sliding_window(config["sliding_window"])
        if architecture in NORM_PLUS_ONE:
            kinds = config["layer_types"]
            writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in kinds])
    if config.get("attn_logit_softcapping"):
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    if config.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    experts = config.get("num_local_experts") or config.get("num_experts")
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
        if "moe_intermediate_size" in config:
            writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    parameters = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    if "full_attention" in parameters:
        parameters = {**parameters["full_attention"], "local": parameters["sliding_attention"]}
    parameters.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    return parameters


def _rope_metadata(writer: gguf.GGUFWriter, config: dict[str, Any], architecture: str) -> None:
    rope = _rope(config)
    writer.add_rope_freq_base(float(rope["rope_theta"]))
    if "local" in rope:
        key = f"{architecture}.rope.freq_base_swa"
        writer.add_float32(key, float(rope["local"].get("rope_theta", 10000.0)))
    kind = rope.get("rope_type", "default")
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(float(rope["factor"]))
    elif kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(float(rope["factor"]))
        writer.add_rope_scaling_orig_ctx_len(int(rope["original_max_position_embeddings"]))


def _tensors(
    folder: Path, config: dict[str, Any], architecture: str
) -> Iterator[tuple[str, Array]]:
    layers = config["num_hidden_layers"]
    names = gguf.get_tensor_name_map(_arch_enum(architecture), layers)
    experts: dict[tuple[str, str], dict[int, Array]] = {}
    for key, array in _safetensors(folder):
        if ".experts." in key:
            prefix, rest = key.split(".experts.")
            if rest[0].isdigit():
                index, part, _ = rest.split(".")
                experts.setdefault((prefix, part), {})[int(index)] = array
                continue
        if key == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        yield _named(names, key, _layout(key, array, config, architecture))
    for (prefix, part), rows in experts.items():
        stacked = np.stack([rows[index] for index in sorted(rows)])
        kind = {"w1": "gate", "w3": "up", "w2": "down"}.get(part, part.removesuffix("_proj"))
        layer = prefix.split(".")[2]
        yield f"blk.{layer}.ffn_{kind}_exps.weight", stacked
    if _rope(config).get("rope_type") == "llama3":
        yield "rope_freqs.weight", _llama3_factors(config)


def _named(names: Any, key: str, array: Array) -> tuple[str, Array]:
    name = names.get_name(key, try_suffixes=(".weight", ".bias"))
    if name is None:
        raise CkeError(Diagnostic(code="CKE713", message=f"no GGUF name for the tensor `{key}`"))
    return name, array


def _layout(key: str, array: Array, config: dict[str, Any], architecture: str) -> Array:
    if architecture in NORM_PLUS_ONE and key.endswith("norm.weight"):
        return np.asarray(array, np.float32) + np.float32(1)
    if architecture in ROPE_PAIRS and (".q_proj." in key or ".k_proj." in key):
        heads = config["num_attention_heads"]
        if ".k_proj." in key:
            heads = config.get("num_key_value_heads") or heads
        pairs = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
        return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(array.shape)
    return array


def _llama3_factors(config: dict[str, Any]) -> Array:
    rope = _rope(config)
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    frequencies = 1.0 / rope["rope_theta"] ** (np.arange(0, width, 2, dtype=np.float64) / width)
    wavelengths = 2 * np.pi / frequencies
    original = rope["original_max_position_embeddings"]
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    smooth = np.clip((original / wavelengths - low) / (high - low), 0, 1)
    factors: Array = (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)
    return factors


def _arch_enum(architecture: str) -> Any:
    return next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)


def _safetensors(folder: Path) -> Iterator[tuple[str, Array]]:
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="numpy") as tensors:
            for key in tensors.keys():
                yield key, tensors.get_tensor(key)
