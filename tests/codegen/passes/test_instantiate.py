"""Circuits under a config: layer kinds, checkpoints, hidden operands, contracts and givens."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from cke.codegen.build_ir import BuildIR, Function, Op
from cke.codegen.checkpoints import checkpoint_key
from cke.codegen.library import library_circuits, reference_source
from cke.codegen.passes.drop_dead_results import drop_dead_results
from cke.codegen.passes.instantiate import instantiate
from cke.codegen.verify.build import verify_build
from cke.dsl.match import find_family
from cke.dsl.resolve import load_circuit
from cke.errors import CkeError
from cke.kernel_registry.operators import OPERATORS
from cke.runtime.weights import open_model
from cke.schemas.ir import Edge
from tests.codegen.passes.source import LLAMA, Source
from tests.models import FAMILIES

STAGES = (
    "layer_input",
    "attention_norm_output",
    "attention.query_projection_output",
    "attention.key_projection_output",
    "attention.value_projection_output",
    "attention.rope_query_output",
    "attention.rope_key_output",
    "attention.attention_scores",
    "attention.attention_probabilities",
    "attention.attention_context",
    "attention.attention_output_projection",
    "post_attention_residual",
    "mlp_norm_output",
    "mlp.mlp_gate_projection",
    "mlp.mlp_up_projection",
    "mlp.mlp_gated_activation",
    "mlp.mlp_down_projection",
    "layer_output",
)


def build(circuit: str, dtype: str = "f32", **config: Any) -> BuildIR:
    return instantiate(load_circuit(circuit), Source({**LLAMA, **config}), dtype)


def functions(ir: BuildIR) -> dict[str, Function]:
    return {function.name: function for function in ir.programs[0].functions}


def edges(function: Function) -> Iterator[Edge]:
    for op in function.ops:
        yield from op.results
    yield from function.aliases


def op(function: Function, name: str) -> Op:
    return next(each for each in function.ops if each.id == name)


def test_layers_with_equal_rows_are_one_function() -> None:
    ir = build("llama", num_hidden_layers=126)
    assert [(f.name, len(f.layers)) for f in ir.programs[0].functions] == [
        ("embed", 0),
        ("layer", 126),
        ("head", 0),
    ]
    assert len(ir.programs[0].steps) == 128


def test_work_does_not_grow_with_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    linear = OPERATORS["linear"]

    def counted(*operands: Any) -> Any:
        calls.append("linear")
        return linear.shape_rule(*operands)

    rule = msgspec.structs.replace(linear, shape_rule=counted)
    monkeypatch.setitem(OPERATORS, "linear", rule)
    build("llama", num_hidden_layers=3)
    few = len(calls)
    build("llama", num_hidden_layers=126)
    assert len(calls) == 2 * few


def test_the_seventeen_stages_and_the_layer_output_are_named_in_order() -> None:
    layer = functions(build("llama"))["layer"]
    assert {edge.checkpoint.name for edge in edges(layer)} >= set(STAGES)
    made = [name for name in (e.checkpoint.name for e in edges(layer)) if name in STAGES[1:]]
    assert made == list(STAGES[1:])
    entry = next(alias for alias in layer.aliases if alias.name == "layer_input")
    assert entry.alias_of == "x"


def test_append_has_its_roles_and_hidden_operands() -> None:
    layer = functions(build("llama"))["layer"]
    keys = [checkpoint_key(edge) for edge in edges(layer) if edge.checkpoint.point == "kv_append"]
    assert keys == [
        "attention.kv_append.stored_key",
        "attention.kv_append.stored_value",
        "attention.kv_append.new_key",
        "attention.kv_append.new_value",
    ]
    append = op(layer, "attention.append")
    assert append.inputs[0] == "positions"
    assert append.state == "attention.kv"
    assert op(layer, "attention.sdpa").inputs == (
        append.inputs[1].replace(".k", ".q"),
        "attention.keys",
        "attention.values",
        None,
        None,
        "positions",
        "attention.key_positions",
    )


def test_an_identity_is_an_alias_and_no_op() -> None:
    embed = functions(build("llama"))["embed"]
    assert [each.operator for each in embed.ops] == ["embedding"]
    assert [(a.checkpoint.name, a.alias_of) for a in embed.aliases] == [("embedding", "x")]
    scaled = functions(build("granite", embedding_multiplier=2.0))["embed"]
    assert [each.operator for each in scaled.ops] == ["embedding", "scale"]


def test_a_skipped_rebinding_leaves_its_point_as_an_alias() -> None:
    layer = functions(build("llama"))["layer"]
    norm = next(a for a in layer.aliases if a.checkpoint.point == "q_norm_output")
    assert norm.alias_of == "attention.q"
    plain = functions(build("qwen3"))["layer"]
    assert op(plain, "attention.q_norm").results[0].checkpoint.point == "q_norm_output"


def test_floats_that_differ_between_layers_are_scalars() -> None:
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": 16,
        "n_embd": 8,
        "n_layer": 3,
        "n_head": 2,
        "n_positions": 32,
        "layer_norm_epsilon": 1e-5,
        "scale_attn_by_inverse_layer_idx": True,
    }
    ir = instantiate(load_circuit("gpt2"), Source(config), "f32")
    layer = functions(ir)["layer"]
    assert layer.layers == (0, 1, 2)
    assert [each.name for each in layer.scalars] == ["attention.sdpa.scale"]
    sdpa = op(layer, "attention.sdpa")
    assert sdpa.scalars == {"scale": "attention.sdpa.scale"}
    assert "scale" not in sdpa.attributes
    scales = [step.scalars["attention.sdpa.scale"] for step in ir.programs[0].steps[1:4]]
    assert scales == [0.5, 0.25, 0.5 / 3]


def test_kinds_are_named_after_what_sets_them_apart() -> None:
    kinds = {
        name: list(functions(instantiate(load_circuit(name), reference_source(name), "f32")))
        for name in ("gemma3", "qwen3_moe")
    }
    assert kinds == {
        "gemma3": ["embed", "layer_sliding", "layer_full", "head"],
        "qwen3_moe": ["embed", "layer_gated_mlp", "layer_moe", "head"],
    }


def test_contracts_name_the_run_dtype() -> None:
    layer = functions(build("llama", "bf16"))["layer"]
    contract = op(layer, "attention.q_proj").contract
    assert contract.storage == {"input": "bf16", "weight": "bf16", "output": "bf16"}
    assert contract.compute == {"input": "bf16", "accumulator": "f32"}
    assert op(layer, "attn_norm").contract.compute["input"] == "f32"
    scores = op(layer, "attention.sdpa").contract
    assert scores.rounding["points"] == ["scores", "probabilities", "output"]
    assert scores.compute["probabilities.input"] == "f32"


def test_a_weight_may_be_kept_wider_than_the_run() -> None:
    config = FAMILIES["deepseek_v3"][2] | {"architectures": ["DeepseekV3ForCausalLM"]}
    source = Source({**config, "scoring_func": "sigmoid", "n_shared_experts": 1})
    ir = instantiate(load_circuit("deepseek_v3"), source, "bf16")
    weights = {w.name: w.type.dtype for w in functions(ir)["layer_moe"].weights}
    assert weights["mlp.router.weight"] == "f32"
    assert weights["mlp.shared.up_proj.weight"] == "bf16"


def test_givens_say_what_supplied_them() -> None:
    ir = build("llama", rope_theta=5e5)
    found = {(each.instance, each.name): each for each in ir.givens}
    theta = found[("attention", "theta")]
    assert (theta.value, theta.layers) == (5e5, (0, 1))
    assert theta.supplied_by.startswith("circuits/blocks/config.circuit:")
    default = found[("attention", "pairing")]
    assert default.value == "split_half"
    assert default.supplied_by.startswith("circuits/blocks/decoder.circuit:")


def test_phases_follow_from_state() -> None:
    assert [program.phase for program in build("llama").programs] == ["prefill", "decode"]
    config = {**FAMILIES["bert"][2], "architectures": ["BertModel"], "type_vocab_size": 2}
    source = Source({**config, "layer_norm_eps": 1e-12})
    ir = instantiate(load_circuit("bert"), source, "f32")
    assert [program.phase for program in ir.programs] == ["encode"]
    assert [each.name for each in ir.programs[0].inputs] == [
        "tokens",
        "types",
        "positions",
        "valid",
    ]


def test_errors_of_a_config_name_the_operator() -> None:
    with pytest.raises(CkeError) as caught:
        build("qwen3", head_dim=7)
    assert "error[CKE212]: `rope` rotates an even width of at most 7, got 7" in str(caught.value)


def test_a_dead_result_is_marked_and_kept_when_captured() -> None:
    ir = build("llama")
    layer = functions(drop_dead_results(ir))["layer"]
    assert [e.live for e in op(layer, "attention.sdpa").results] == [False, False, True]
    wanted = msgspec.structs.replace(ir, capture=("attention.attention_probabilities",))
    kept = functions(drop_dead_results(wanted))["layer"]
    assert [e.live for e in op(kept, "attention.sdpa").results] == [False, True, True]


@pytest.mark.parametrize("capture", [(), ("*",)])
def test_an_op_that_nothing_reads_is_dropped_captured_or_not(capture: tuple[str, ...]) -> None:
    ir = build("llama")
    program = ir.programs[0]
    head = functions(ir)["head"]
    extra = msgspec.structs.replace(
        head.ops[-1],
        id="unread",
        results=(msgspec.structs.replace(head.ops[-1].results[0], name="unread"),),
    )
    changed = msgspec.structs.replace(head, ops=(*head.ops, extra))
    program = msgspec.structs.replace(program, functions=(*program.functions[:-1], changed))
    dropped = drop_dead_results(msgspec.structs.replace(ir, programs=(program,), capture=capture))
    assert [each.id for each in functions(dropped)["head"].ops] == ["final", "head"]


@pytest.mark.parametrize("name", library_circuits())
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_reference_configs_give_valid_build_ir(name: str, dtype: str) -> None:
    verify_build(instantiate(load_circuit(name), reference_source(name), dtype))


@pytest.mark.oracle_torch
@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"starcoder2"}))
def test_every_tensor_of_a_family_is_used_or_ignored(family: str, tiny_model: Any) -> None:
    source = open_model(tiny_model(family))
    ir = instantiate(load_circuit(find_family(source).circuit), source, "f32")
    assert source.tensors is not None
    assert {*ir.coverage.used, *ir.coverage.ignored} == set(source.tensors)
    verify_build(ir)


@pytest.mark.real_model
def test_smollm2_binds_with_undone_rope_pairs(smollm2_gguf: Any) -> None:
    source = open_model(smollm2_gguf)
    ir = instantiate(load_circuit(find_family(source).circuit), source, "f32")
    assert len(ir.coverage.used) == len(source.tensors or ())
    found = {each.semantic: each for each in ir.bindings}
    key = found["layer.29.attention.k_proj.weight"]
    assert [step.arguments for step in key.transforms] == [
        {"shape": [3, 32, 2, 576]},
        {"axes": [0, 2, 1, 3]},
        {"shape": [3, 64, 576]},
    ]
    assert found["head.weight"].tied_to == "embed.weight"


def test_a_wrapped_config_is_read_where_the_match_says() -> None:
    text = reference_source("gemma3").config
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}
    source = Source(config)
    assert find_family(source).circuit == "gemma3"
    ir = instantiate(load_circuit("gemma3"), source, "f32")
    plain = instantiate(load_circuit("gemma3"), reference_source("gemma3"), "f32")
    assert ir.dims == plain.dims
    assert ir.programs == plain.programs
