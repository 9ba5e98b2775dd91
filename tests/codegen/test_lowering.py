import pytest

from cke.codegen.checkpoints import (
    build_checkpoints,
    call_checkpoints,
    graph_checkpoints,
    lowered_checkpoints,
)
from cke.codegen.verify.build import verify_build
from cke.codegen.verify.call import verify_call
from cke.codegen.verify.graph import verify_graph
from cke.codegen.verify.lowered import verify_lowered
from tests.codegen.levels import levels


def test_every_level_of_the_toy_verifies() -> None:
    toy = levels(("*",))
    verify_build(toy.build)
    verify_graph(toy.graph)
    verify_lowered(toy.lowered)
    verify_call(toy.calls)


@pytest.mark.contract("XRAY-56")
def test_checkpoint_metadata_is_equal_at_every_level() -> None:
    toy = levels()
    expected = build_checkpoints(toy.build)
    assert expected == graph_checkpoints(toy.graph)
    assert expected == lowered_checkpoints(toy.lowered)
    assert expected == call_checkpoints(toy.calls)


@pytest.mark.contract("XRAY-56")
def test_a_checkpoint_names_operation_kernel_function_phase_layers_layout_and_axes() -> None:
    bindings = {
        (item.phase, item.checkpoint.name): item for item in call_checkpoints(levels().calls)
    }
    found = bindings["decode", "attention.key_projection_output"]
    assert (found.operation, found.operator) == ("attention.k_proj", "linear")
    assert (found.kernel_id, found.kernel_function) == ("linear_group", "linear_group")
    assert (found.call, found.result) == ("attention.qkv", 1)
    assert (found.function, found.layers, found.layout) == ("layer", (0, 1), "row_major")
    assert found.type.axes == ("B", "T", "K", "E")


def test_a_point_on_a_parameter_is_an_alias() -> None:
    (found,) = [
        item
        for item in call_checkpoints(levels().calls)
        if (item.phase, item.edge) == ("prefill", "layer_input")
    ]
    assert (found.alias_of, found.operator) == ("x", "parameter")


def test_every_edge_of_an_op_has_a_checkpoint() -> None:
    graph = levels().graph
    edges = {
        (program.phase, function.name, edge.name)
        for program in graph.programs
        for function in program.functions
        for op in function.ops
        for edge in op.results
    }
    assert edges <= {(item.phase, item.function, item.edge) for item in graph_checkpoints(graph)}


def test_the_members_of_a_fusion_group_are_one_call_over_concatenated_weights() -> None:
    layer = levels().calls.programs[0].functions[1]
    call = layer.calls[1]
    assert [member.op for member in call.members] == [
        "attention.q_proj",
        "attention.k_proj",
        "attention.v_proj",
    ]
    assert call.attributes["sizes"] == [4, 2, 2]
    weights = {weight.name: weight.type for weight in layer.weights}
    assert weights["attention.qkv.weight"].shape == (8, 6, 12)
    assert layer.fused[0].members == tuple(f"attention.{name}_proj.weight" for name in "qkv")


def test_a_stateful_call_names_its_slot_and_action() -> None:
    layer = levels().calls.programs[0].functions[1]
    (call,) = [call for call in layer.calls if call.cache is not None]
    assert (call.cache.slot, call.cache.action) == ("attention.kv", "append")  # type: ignore[union-attr]
    assert (call.arguments[0].source, call.arguments[0].name) == ("state", "attention.kv")


def test_every_layer_owns_a_slot() -> None:
    slots = levels().calls.programs[0].slots
    assert [slot.name for slot in slots] == ["layer.0.attention.kv", "layer.1.attention.kv"]


def test_capture_patterns_choose_checkpoints_per_function() -> None:
    functions = levels(("attention.rope_*", "logits")).calls.programs[0].functions
    assert [function.capture for function in functions] == [
        (),
        ("attention.rope_query_output", "attention.rope_key_output"),
        ("logits",),
    ]


def test_scopes_name_the_live_edges_of_an_op() -> None:
    layer = levels().lowered.programs[0].functions[1]
    (sdpa,) = [item for item in layer.ops if item.op.operator == "sdpa"]
    assert sdpa.scopes == ("attention.attention_context",)
