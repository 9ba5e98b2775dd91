"""Weights from headers: complete both ways, and errors that say what was tried."""

from pathlib import Path

import pytest

from cke.codegen.build_ir import BuildIR
from cke.codegen.passes.instantiate import instantiate
from cke.dsl.resolve import load_circuit
from cke.errors import CkeError
from cke.schemas.bindings import WeightBinding
from tests.codegen.passes.source import LLAMA, Source, llama_shapes

LAYER = """circuit small@1 "one layer of {what}"
use blocks.taxonomy
model lm

match:
  hf SmallForCausalLM

config:
  V: dim = hf.vocab_size
  D: dim = hf.hidden_size
  H: dim = 2
  E: dim = 3
  X: dim = 2
  M: dim = 4
  ignore architectures

block lm(tokens: int[B, T]) -> [B, T, D]:
  parts:
    embed: embedding[V -> D]   hf "embed"   gguf "token_embd"
{parts}
  x = embed(tokens)
{body}
"""
SMALL = {"architectures": ["SmallForCausalLM"], "vocab_size": 16, "hidden_size": 8}


def small(
    tmp_path: Path,
    parts: str,
    body: str,
    shapes: dict[str, tuple[int, ...]],
) -> BuildIR:
    path = tmp_path / "small.circuit"
    path.write_text(LAYER.format(what="a test", parts=parts, body=body))
    source = Source(SMALL, {"embed.weight": (16, 8), **shapes})
    return instantiate(load_circuit(path), source, "f32")


def binding(ir: BuildIR, semantic: str) -> WeightBinding:
    return next(each for each in ir.bindings if each.semantic == semantic)


def test_every_weight_and_tensor_is_accounted_for() -> None:
    ir = instantiate(load_circuit("llama"), Source(LLAMA, llama_shapes()), "f32")
    assert ir.coverage.used.keys() == llama_shapes().keys()
    assert ir.coverage.ignored == {}
    assert binding(ir, "head.weight").tied_to == "embed.weight"
    query = binding(ir, "layer.1.attention.q_proj.weight")
    assert query.sources == ("model.layers.1.self_attn.q_proj.weight",)
    assert [(step.kind, step.arguments) for step in query.transforms] == [
        ("reshape", {"shape": [4, 2, 8]})
    ]


def test_the_tensor_of_a_tied_part_is_ignored_by_name() -> None:
    shapes = {**llama_shapes(), "lm_head.weight": (16, 8)}
    ir = instantiate(load_circuit("llama"), Source(LLAMA, shapes), "f32")
    assert ir.coverage.ignored == {"lm_head.weight": "tied to `embed.weight`"}


def test_a_missing_tensor_lists_what_was_tried() -> None:
    shapes = llama_shapes()
    del shapes["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(CkeError) as caught:
        instantiate(load_circuit("llama"), Source(LLAMA, shapes), "f32")
    headline, note = str(caught.value).splitlines()
    assert headline == (
        "model: error[CKE450]: no tensor for `layer.1.mlp.up_proj.weight`: "
        "tried `model.layers.1.mlp.up_proj.weight`"
    )
    assert note.startswith("  note: declared at circuits/blocks/decoder.circuit:")


def test_a_wrong_shape_says_expected_and_got() -> None:
    shapes = {**llama_shapes(), "model.layers.0.self_attn.k_proj.weight": (8, 8)}
    with pytest.raises(CkeError) as caught:
        instantiate(load_circuit("llama"), Source(LLAMA, shapes), "f32")
    assert str(caught.value).splitlines()[0] == (
        "model: `model.layers.0.self_attn.k_proj.weight`: error[CKE451]: expected [4, 8] for "
        "`layer.0.attention.k_proj.weight` as [K E, D], got [8, 8]"
    )


def test_a_stray_tensor_is_an_error() -> None:
    shapes = {**llama_shapes(), "model.layers.2.input_layernorm.weight": (8,)}
    with pytest.raises(CkeError) as caught:
        instantiate(load_circuit("llama"), Source(LLAMA, shapes), "f32")
    assert str(caught.value) == (
        "model: `model.layers.2.input_layernorm.weight`: error[CKE452]: "
        "this tensor is neither used nor ignored\n"
        "  help: bind it in the circuit, or add it to `ignore tensors`"
    )


def test_all_errors_of_binding_are_reported_together() -> None:
    shapes = {**llama_shapes(), "stray": (1,), "model.norm.weight": (9,)}
    del shapes["model.embed_tokens.weight"]
    with pytest.raises(CkeError) as caught:
        instantiate(load_circuit("llama"), Source(LLAMA, shapes), "f32")
    assert [each.code for each in caught.value.diagnostics] == ["CKE450", "CKE451", "CKE452"]


def test_a_loop_stacks_one_tensor_per_index(tmp_path: Path) -> None:
    parts = '    bias: tensor[X, D]   hf "e.{X}.b"'
    body = "  y = take(bias, axis: X, at: 0)\n  return x * y"
    ir = small(tmp_path, parts, body, {"e.0.b": (8,), "e.1.b": (8,)})
    found = binding(ir, "bias")
    assert found.sources == ("e.0.b", "e.1.b")
    assert [(step.kind, step.purpose) for step in found.transforms] == [("stack", "experts")]


def test_a_loop_needs_every_index(tmp_path: Path) -> None:
    parts = '    bias: tensor[X, D]   hf "e.{X}.b"'
    body = "  y = take(bias, axis: X, at: 0)\n  return x * y"
    with pytest.raises(CkeError) as caught:
        small(tmp_path, parts, body, {"e.0.b": (8,)})
    assert str(caught.value).splitlines()[0] == (
        "model: `e.1.b`: error[CKE453]: expected 2 tensors from `e.0.b` on, this one is missing"
    )


def test_the_fused_form_is_taken_when_the_loop_has_no_tensor(tmp_path: Path) -> None:
    parts = '    bias: tensor[X, D]   hf "e.{X}.b" | "fused"'
    body = "  y = take(bias, axis: X, at: 0)\n  return x * y"
    ir = small(tmp_path, parts, body, {"fused": (2, 8)})
    assert binding(ir, "bias").sources == ("fused",)
    assert binding(ir, "bias").transforms == ()


def test_a_layout_must_fit_its_names(tmp_path: Path) -> None:
    parts = (
        '    a: tensor[D]\n    b: tensor[D]\n    c: tensor[D]\n    a, b, c   hf "abc" as [D + D]'
    )
    with pytest.raises(CkeError) as caught:
        small(tmp_path, parts, "  return x * a + b + c", {"abc": (16,)})
    assert {each.code for each in caught.value.diagnostics} == {"CKE243"}
    assert caught.value.diagnostics[0].message == (
        "split of 3 names needs a sum of 3 terms or a literal 3"
    )


def test_a_part_needs_a_source_of_the_format(tmp_path: Path) -> None:
    with pytest.raises(CkeError) as caught:
        small(tmp_path, '    w: tensor[D]   gguf "w"', "  return x * w", {})
    assert str(caught.value).splitlines()[0] == ("model: error[CKE454]: `w` has no hf source")


def test_transforms_of_values_follow_the_moves(tmp_path: Path) -> None:
    parts = '    w: tensor[D]   hf "w" as [D, 1] then negate, log'
    ir = small(tmp_path, parts, "  return x * w", {"w": (8, 1)})
    assert [step.kind for step in binding(ir, "w").transforms] == ["reshape", "negate", "log"]


def test_without_tensors_the_first_source_is_named() -> None:
    ir = instantiate(load_circuit("llama"), Source(LLAMA), "f32")
    assert ir.coverage.used["model.embed_tokens.weight"] == ("embed.weight",)
    assert binding(ir, "layer.0.mlp.down_proj.weight").sources == (
        "model.layers.0.mlp.down_proj.weight",
    )
