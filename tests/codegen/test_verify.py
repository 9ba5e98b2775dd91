import msgspec
import pytest

from cke.codegen.build_ir import BuildIR
from cke.codegen.verify.build import verify_build
from cke.codegen.verify.call import verify_call
from cke.codegen.verify.graph import verify_graph
from cke.codegen.verify.invariant import InvariantError
from cke.codegen.verify.lowered import verify_lowered
from cke.schemas.call_ir import CallIR
from tests.codegen.levels import levels
from tests.codegen.toy import replace_layer_op, toy

replace = msgspec.structs.replace


@pytest.mark.parametrize(
    ("op", "changes", "message"),
    [
        ("attn_norm", {"inputs": ("nothing", None)}, "`attn_norm` reads `nothing`, which is not"),
        ("attn_norm", {"operator": "norm"}, "`attn_norm` uses `norm`, which is no operator"),
        ("attn_norm", {"inputs": (None, None)}, "`attn_norm` lacks `x`"),
        ("attn_norm", {"inputs": ("x",)}, "`attn_norm` expects 2 inputs, got 1"),
        ("attn_norm", {"weights": ("norm.weight",)}, "takes weight `norm.weight`"),
        ("attn_norm", {"attributes": {}}, "expects attributes ['eps', 'groups', 'offset', "),
        ("attn_norm", {"state": "attention.kv"}, "expects state None, got attention.kv"),
        ("attention.append", {"state": None}, "expects state cache, got None"),
        ("attention.append", {"state": "kv"}, "keeps `kv`, which is not defined"),
        ("mlp_norm", {"id": "attn_norm"}, "`layer` has 2 of unit `attn_norm`"),
    ],
)
def test_verify_build_rejects(op: str, changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvariantError) as raised:
        verify_build(replace_layer_op(toy(), op, **changes))
    assert message in str(raised.value)


def test_verify_build_rejects_a_second_definition() -> None:
    ir = toy()
    first = ir.programs[0].functions[1].ops[0].results
    with pytest.raises(InvariantError, match="`mlp_norm` defines `h` again"):
        verify_build(replace_layer_op(ir, "mlp_norm", results=first))


def test_verify_build_rejects_a_weight_without_binding() -> None:
    with pytest.raises(InvariantError, match=r"weight `embed\.weight` has no binding"):
        verify_build(replace(toy(), bindings=toy().bindings[1:]))


def test_a_failed_verification_carries_the_text_of_the_ir() -> None:
    with pytest.raises(InvariantError) as raised:
        verify_build(replace_layer_op(toy(), "attn_norm", operator="norm"))
    assert raised.value.__notes__[0].startswith("BuildIR toy@1 f32")


def _with_steps(ir: BuildIR, steps: tuple[object, ...]) -> BuildIR:
    return replace(ir, programs=(replace(ir.programs[0], steps=steps),))


def test_verify_build_rejects_a_layer_that_no_step_calls() -> None:
    steps = toy().programs[0].steps
    with pytest.raises(InvariantError, match="`layer` is not called once per layer"):
        verify_build(_with_steps(toy(), (*steps[:2], replace(steps[3], arguments=("x.1",)))))


def test_verify_build_rejects_a_step_that_reads_before_definition() -> None:
    steps = toy().programs[0].steps
    broken = replace(steps[1], arguments=("x.9", "positions"))
    with pytest.raises(InvariantError, match=r"`layer` at 0 reads `x\.9` before it is defined"):
        verify_build(_with_steps(toy(), (steps[0], broken, *steps[2:])))


def test_verify_graph_rejects_an_edge_of_another_type_than_its_operator_gives() -> None:
    graph = levels().graph
    layer = graph.programs[0].functions[1]
    edge = replace(layer.ops[0].results[0], type=layer.weights[1].type)
    broken = replace(layer, ops=(replace(layer.ops[0], results=(edge,)), *layer.ops[1:]))
    functions = (graph.programs[0].functions[0], broken, graph.programs[0].functions[2])
    with pytest.raises(InvariantError, match="`h` has axes"):
        verify_graph(replace(graph, programs=(replace(graph.programs[0], functions=functions),)))


def test_verify_lowered_rejects_a_torn_fusion_group() -> None:
    lowered = levels().lowered
    program = lowered.programs[0]
    layer = program.functions[1]
    q, k, v = layer.ops[1:4]
    ops = (layer.ops[0], q, layer.ops[4], k, v, *layer.ops[5:])
    ops = tuple(replace(item, order=order) for order, item in enumerate(ops))
    functions = (program.functions[0], replace(layer, ops=ops), program.functions[2])
    with pytest.raises(InvariantError, match="a fusion group is not contiguous"):
        verify_lowered(replace(lowered, programs=(replace(program, functions=functions),)))


def _with_call(index: int, **changes: object) -> CallIR:
    calls = levels().calls
    program = calls.programs[0]
    layer = program.functions[1]
    items = list(layer.calls)
    items[index] = replace(items[index], **changes)
    functions = (program.functions[0], replace(layer, calls=tuple(items)), program.functions[2])
    return replace(calls, programs=(replace(program, functions=functions),))


def test_verify_call_rejects_a_result_that_no_member_gives() -> None:
    members = levels().calls.programs[0].functions[1].calls[1].members[:2]
    with pytest.raises(InvariantError, match="has results that no single member gives"):
        verify_call(_with_call(1, members=members))


def test_verify_call_rejects_state_without_a_cache_action() -> None:
    with pytest.raises(InvariantError, match="takes state and names no cache action"):
        verify_call(_with_call(4, cache=None))


def test_verify_call_rejects_the_capture_of_a_dead_edge() -> None:
    calls = levels().calls
    program = calls.programs[0]
    layer = replace(program.functions[1], capture=("attention.attention_scores",))
    functions = (program.functions[0], layer, program.functions[2])
    with pytest.raises(InvariantError, match=r"captures `attention\.attention_scores`, which is"):
        verify_call(replace(calls, programs=(replace(program, functions=functions),)))
