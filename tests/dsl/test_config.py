"""Configs: fallbacks, absence, schedules, and every key accounted for."""

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from cke.dsl.circuit import Circuit
from cke.dsl.config import bind_config
from cke.dsl.evaluate import UNKNOWN
from cke.dsl.match import find_family, matching_row
from cke.dsl.resolve import load_circuit
from cke.errors import CkeError
from cke.schemas.model_source import TensorInfo

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 128,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
REFERENCES = sorted(Path(str(resources.files("cke.circuits"))).glob("reference/*/config.json"))


class Source:
    """A model's config, with tensor headers when given."""

    name = "model"

    def __init__(
        self,
        config: dict[str, Any],
        format: Any = "hf",
        tensors: dict[str, TensorInfo] | None = None,
    ) -> None:
        self.config, self.format, self.tensors = config, format, tensors

    def values(self, key: str) -> list[float]:
        return [1.0, 2.0]


def circuit(tmp_path: Path, rows: str, parent: str = "llama@1") -> Circuit:
    path = tmp_path / "x.circuit"
    path.write_text(f'circuit x@1 from {parent} "Example"\n{rows}', "utf-8")
    return load_circuit(path)


def value(tmp_path: Path, expression: str, kind: str = "float?", **config: Any) -> Any:
    loaded = circuit(tmp_path, f"config:\n  a: {kind} = {expression}\n")
    return bind_config(loaded, Source({**CONFIG, **config})).values["a"]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("hf.k ?? 2", 3.0),
        ("hf.absent ?? 2", 2.0),
        ("hf.null ?? 2", 2.0),
        ("hf.absent * 2 ?? 5", 5.0),
        ("hf.absent[0].x ?? 5", 5.0),
        ("gguf.k ?? 7", 7.0),
        ("hf.absent", None),
        ("1 if absent(hf.absent) else 2", 1.0),
        ("1 if absent(hf.null) else 2", 2.0),
        ("1 if hf.absent == none else 2", 1.0),
        ("hf.items[1]", 5.0),
        ("hf.table.inner", 9.0),
        ("-2 ** 2", -4.0),
        ("7 // 2 + 7 % 4", 6.0),
        ("1 if 5 in hf.items else 2", 1.0),
        ("1 if source == hf else 2", 1.0),
        ("max(2, 3) + min(4, 1) + floor(2.5) + ceil(0.5) + sqrt(16)", 11.0),
        ('size("w", 0) ?? 4', 4.0),
        ('1 if has("w") else 2', 2.0),
    ],
)
def test_expression_has_its_value(tmp_path: Path, expression: str, expected: object) -> None:
    config = {"k": 3, "null": None, "items": [4, 5], "table": {"inner": 9}}
    read = "".join(f"  ignore {key}\n" for key in config if f"hf.{key}" not in expression)
    loaded = circuit(tmp_path, f"config:\n  a: float? = {expression}\n{read}")
    assert bind_config(loaded, Source({**CONFIG, **config})).values["a"] == expected


def test_headers_of_tensors_are_read(tmp_path: Path) -> None:
    tensors = {"w": TensorInfo((3, 5), "F32")}
    loaded = circuit(tmp_path, 'config:\n  a: int = size("w", 1)\n  b: list = tensor("w")\n')
    values = bind_config(loaded, Source(CONFIG, tensors=tensors)).values
    assert (values["a"], values["b"]) == (5, [1.0, 2.0])


def test_gguf_keys_take_the_prefix_of_the_architecture(tmp_path: Path) -> None:
    config = {"general.architecture": "odd", "odd.rope.freq_base": 7.0, "tokenizer.x": 5}
    loaded = circuit(
        tmp_path,
        "config:\n  theta = gguf.rope.freq_base\n  D = 64\n  L = 2\n  H = 4\n  K = 4\n  F = 8\n"
        '  V = gguf["tokenizer.x"]\n  max_positions = 8\n',
    )
    found = bind_config(loaded, Source(config, "gguf"))
    assert (found.values["theta"], found.dims["V"]) == (7.0, 5)


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"surprise": 1}, "$.surprise"),
        ({"surprise": None}, "$.surprise"),
        ({"rope_parameters": {"rope_theta": 1e4, "surprise": 1}}, "$.rope_parameters.surprise"),
    ],
)
def test_unknown_key_is_an_error(config: dict[str, Any], path: str) -> None:
    with pytest.raises(CkeError, match=r"error\[CKE301\]: unknown config key") as caught:
        bind_config(load_circuit("llama"), Source({**CONFIG, **config}))
    assert [item.path for item in caught.value.diagnostics] == [path]


def test_bookkeeping_of_any_config_is_no_surprise() -> None:
    config = {"_name_or_path": "x", "temperature": 0.7, "id2label": {"0": "a"}}
    assert bind_config(load_circuit("llama"), Source({**CONFIG, **config})).dims["D"] == 64


def test_ignored_keys_may_be_nested_and_children_may_read_what_parents_ignore(
    tmp_path: Path,
) -> None:
    config = {"rope_parameters": {"rope_theta": 1e4, "surprise": 1}, "use_cache": 3}
    rows = (
        "config:\n  theta = hf.use_cache\n"
        "  ignore rope_parameters.surprise, rope_parameters.rope_theta\n"
    )
    found = bind_config(circuit(tmp_path, rows), Source({**CONFIG, **config}))
    assert found.values["theta"] == 3.0


def test_schedule_rows_see_each_other_the_index_and_the_config(tmp_path: Path) -> None:
    rows = (
        "schedule i in L:\n  window = 8 if even else none\n  even: bool = i % 2 == 0\n"
        "  theta = theta * (i + 1)\n"
    )
    found = bind_config(circuit(tmp_path, rows), Source({**CONFIG, "rope_theta": 10.0}))
    assert [row["window"] for row in found.rows] == [8, None, 8, None]
    assert [row["theta"] for row in found.rows] == [10.0, 20.0, 30.0, 40.0]


def test_without_a_config_values_are_unknown_and_constants_are_not(tmp_path: Path) -> None:
    found = bind_config(circuit(tmp_path, "config:\n  qk_norm = flat\n"), None)
    assert found.values["D"] is UNKNOWN
    assert found.values["qk_norm"] == "flat"


def test_wrapped_config_is_rooted_where_the_match_says(tmp_path: Path) -> None:
    loaded = circuit(tmp_path, "match:\n  hf WrappedModel under inner.text\n")
    config = {"architectures": ["WrappedModel"], "inner": {"text": CONFIG}, "vision": 1}
    row = matching_row(loaded, Source(config))
    assert row is not None
    assert bind_config(loaded, Source(config), row.under).dims["D"] == 64


def test_condition_of_a_match_tells_families_apart() -> None:
    config = {"general.architecture": "llama"}
    assert find_family(Source(config, "gguf")).circuit == "llama"
    assert find_family(Source({**config, "llama.expert_count": 8}, "gguf")).circuit == "mixtral"


@pytest.mark.parametrize("path", REFERENCES, ids=lambda path: path.parent.name)
def test_reference_config_finds_and_binds_its_circuit(path: Path) -> None:
    source = Source(json.loads(path.read_text("utf-8")))
    family = find_family(source)
    assert family.circuit == path.parent.name
    assert bind_config(load_circuit(family.circuit), source, family.under).dims["L"] > 0
