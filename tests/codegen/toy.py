"""A two-layer llama, written by hand as BuildIR: what lowering and emission are tested on.

It needs no circuit and no model. Dims are small and all different, so that a swapped axis shows.
"""

import msgspec

from cke.codegen.build_ir import BuildIR, Function, Op, Program
from cke.codegen.checkpoints import is_captured
from cke.errors import Span
from cke.kernel_registry.operators import OPERATORS
from cke.schemas.bindings import Coverage, WeightBinding
from cke.schemas.ir import Checkpoint, Contract, Edge, Parameter, StateSlot, Step, TensorType

DIMS = {"D": 12, "H": 4, "K": 2, "E": 6, "F": 20, "V": 17, "L": 2}
ATTENTION = "circuits/blocks/decoder.circuit"
F32 = Contract(
    storage={"input": "f32", "output": "f32"},
    compute={"input": "f32", "accumulator": "f32"},
)

NORM = msgspec.structs.replace(F32, rounding={"points": ["normalized", "output"]})


def span(line: int, file: str = ATTENTION) -> Span:
    return Span(file, line, 3, line, 40)


def type_of(axes: str, dtype: str = "f32") -> TensorType:
    names = tuple(axes.split())
    return TensorType(axes=names, shape=tuple(DIMS.get(name, name) for name in names), dtype=dtype)


def parameter(name: str, axes: str, dtype: str = "f32") -> Parameter:
    return Parameter(name=name, type=type_of(axes, dtype))


def edge(name: str, axes: str, point: str, line: int, **fields: object) -> Edge:
    """An edge; `point` is `instance.point`, `point`, or a derived `edge/…` id."""
    derived = point.startswith("edge/")
    dtype = fields.pop("dtype", "f32")
    role = fields.pop("role", None)
    return Edge(
        name=name,
        type=type_of(axes, str(dtype)),
        checkpoint=Checkpoint(
            name=point,
            point=None if derived else point.split(".")[-1],
            taxonomy=None if derived else "decoder",
            version=1,
            instance=point.split("/")[1] if derived else ".".join(point.split(".")[:-1]),
            role=role,  # type: ignore[arg-type]
        ),
        span=span(line),
        **fields,  # type: ignore[arg-type]
    )


def op(
    id: str,
    operator: str,
    inputs: str,
    results: tuple[Edge, ...] | Edge,
    weights: tuple[str | None, ...] = (),
    state: str | None = None,
    **attributes: object,
) -> Op:
    edges = results if isinstance(results, tuple) else (results,)
    names = [None if name == "-" else name for name in inputs.split()]
    names += [None] * (len(OPERATORS[operator].inputs) - len(names))
    return Op(
        id=id,
        operator=operator,
        instance=".".join(id.split(".")[:-1]),
        inputs=tuple(names),
        weights=weights,
        state=state,
        attributes=_complete(operator, attributes),
        layout={},
        results=edges,
        contract=NORM if operator == "rms_norm" else F32,
        span=edges[0].span,
    )


def _complete(operator: str, attributes: dict[str, object]) -> dict[str, object]:
    declared = OPERATORS[operator].attributes
    return {item.name: attributes.get(item.name, item.default) for item in declared}


def with_layouts(function: Function) -> Function:
    """Return the function with every layout that the shape rules derive."""
    types = {item.name: item.type for item in (*function.parameters, *function.weights)}
    ops = []
    for item in function.ops:
        inferred = OPERATORS[item.operator].shape_rule(
            [None if name is None else types[name] for name in item.inputs],
            [None if name is None else types[name] for name in item.weights],
            item.attributes,
        )
        ops.append(msgspec.structs.replace(item, layout=inferred.layout))
        types.update((edge.name, edge.type) for edge in item.results)
    return msgspec.structs.replace(function, ops=tuple(ops))


def embed() -> Function:
    return Function(
        name="embed",
        parameters=(parameter("tokens", "B T", "i32"),),
        weights=(parameter("embed.weight", "V D"),),
        scalars=(),
        state=(),
        ops=(
            op(
                "embed",
                "embedding",
                "tokens",
                edge("x", "B T D", "embedding", 131),
                weights=("embed.weight",),
            ),
        ),
        results=("x",),
        block="causal_lm",
        span=span(108),
    )


def layer() -> Function:
    rope = {"base": 10000.0, "pairing": "split_half"}
    return Function(
        name="layer",
        parameters=(parameter("x", "B T D"), parameter("positions", "B T", "i32")),
        weights=(
            parameter("attn_norm.weight", "D"),
            parameter("attention.q_proj.weight", "H E D"),
            parameter("attention.k_proj.weight", "K E D"),
            parameter("attention.v_proj.weight", "K E D"),
            parameter("attention.o_proj.weight", "D H E"),
            parameter("mlp_norm.weight", "D"),
            parameter("mlp.gate_proj.weight", "F D"),
            parameter("mlp.up_proj.weight", "F D"),
            parameter("mlp.down_proj.weight", "D F"),
        ),
        scalars=(),
        state=(
            StateSlot(
                name="attention.kv",
                kind="cache",
                lanes=(parameter("k", "B S K E"), parameter("v", "B S K E")),
                span=span(37),
            ),
        ),
        ops=(
            op(
                "attn_norm",
                "rms_norm",
                "x",
                edge("h", "B T D", "attention_norm_output", 80),
                weights=("attn_norm.weight",),
                eps=1e-5,
            ),
            op(
                "attention.q_proj",
                "linear",
                "h",
                edge("attention.q", "B T H E", "attention.query_projection_output", 39),
                weights=("attention.q_proj.weight", None),
            ),
            op(
                "attention.k_proj",
                "linear",
                "h",
                edge("attention.k", "B T K E", "attention.key_projection_output", 40),
                weights=("attention.k_proj.weight", None),
            ),
            op(
                "attention.v_proj",
                "linear",
                "h",
                edge("attention.v", "B T K E", "attention.value_projection_output", 41),
                weights=("attention.v_proj.weight", None),
            ),
            op(
                "attention.rope",
                "rope",
                "attention.q positions -",
                edge("attention.q.2", "B T H E", "attention.rope_query_output", 46),
                **rope,
            ),
            op(
                "attention.rope.2",
                "rope",
                "attention.k positions -",
                edge("attention.k.2", "B T K E", "attention.rope_key_output", 47),
                **rope,
            ),
            op(
                "attention.append",
                "append",
                "positions attention.k.2 attention.v",
                (
                    edge("attention.keys", "B S K E", "attention.kv_append", 48, role="stored_key"),
                    edge(
                        "attention.values",
                        "B S K E",
                        "attention.kv_append",
                        48,
                        role="stored_value",
                    ),
                    edge(
                        "attention.key_positions",
                        "B S",
                        "edge/attention/key_positions/append",
                        48,
                        dtype="i32",
                    ),
                ),
                state="attention.kv",
                lanes=["k", "v"],
            ),
            op(
                "attention.sdpa",
                "sdpa",
                "attention.q.2 attention.keys attention.values - - positions "
                "attention.key_positions",
                (
                    edge(
                        "attention.scores", "B H T S", "attention.attention_scores", 49, live=False
                    ),
                    edge(
                        "attention.probs",
                        "B H T S",
                        "attention.attention_probabilities",
                        49,
                        live=False,
                    ),
                    edge("attention.y", "B T H E", "attention.attention_context", 49),
                ),
                scale=6**-0.5,
                mask="causal",
            ),
            op(
                "attention.o_proj",
                "linear",
                "attention.y",
                edge("attention.return", "B T D", "attention.attention_output_projection", 50),
                weights=("attention.o_proj.weight", None),
            ),
            op(
                "add",
                "add",
                "x attention.return",
                edge("x.2", "B T D", "post_attention_residual", 81),
            ),
            op(
                "mlp_norm",
                "rms_norm",
                "x.2",
                edge("h.2", "B T D", "mlp_norm_output", 82),
                weights=("mlp_norm.weight",),
                eps=1e-5,
            ),
            op(
                "mlp.gate_proj",
                "linear",
                "h.2",
                edge("mlp.gate", "B T F", "mlp.mlp_gate_projection", 60),
                weights=("mlp.gate_proj.weight", None),
            ),
            op(
                "mlp.up_proj",
                "linear",
                "h.2",
                edge("mlp.up", "B T F", "mlp.mlp_up_projection", 61),
                weights=("mlp.up_proj.weight", None),
            ),
            op("mlp.silu", "silu", "mlp.gate", edge("mlp.h.1", "B T F", "edge/mlp/h/silu", 62)),
            op(
                "mlp.multiply",
                "multiply",
                "mlp.h.1 mlp.up",
                edge("mlp.h", "B T F", "mlp.mlp_gated_activation", 62),
            ),
            op(
                "mlp.down_proj",
                "linear",
                "mlp.h",
                edge("mlp.return", "B T D", "mlp.mlp_down_projection", 63),
                weights=("mlp.down_proj.weight", None),
            ),
            op(
                "add.2",
                "add",
                "x.2 mlp.return",
                edge("return", "B T D", "layer_output", 83),
            ),
        ),
        results=("return",),
        layers=(0, 1),
        aliases=(edge("layer_input", "B T D", "layer_input", 79, alias_of="x"),),
        block="pre_norm_layer",
        span=span(65),
    )


def head() -> Function:
    return Function(
        name="head",
        parameters=(parameter("x", "B T D"),),
        weights=(parameter("final.weight", "D"), parameter("head.weight", "V D")),
        scalars=(),
        state=(),
        ops=(
            op(
                "final",
                "rms_norm",
                "x",
                edge("x.2", "B T D", "final_norm", 134),
                weights=("final.weight",),
                eps=1e-5,
            ),
            op(
                "head",
                "linear",
                "x.2",
                edge("logits", "B T V", "logits", 135),
                weights=("head.weight", None),
            ),
        ),
        results=("logits",),
        block="causal_lm",
        span=span(108),
    )


def program(phase: str) -> Program:
    functions = tuple(map(with_layouts, (embed(), layer(), head())))
    steps = [_step(functions[0], None, ("tokens",), ("x.0",))]
    for index in range(DIMS["L"]):
        results = (f"x.{index + 1}",)
        steps.append(_step(functions[1], index, (f"x.{index}", "positions"), results))
    steps.append(_step(functions[2], None, (f"x.{DIMS['L']}",), ("logits",)))
    return Program(
        phase=phase,
        inputs=(parameter("tokens", "B T", "i32"), parameter("positions", "B T", "i32")),
        functions=functions,
        steps=tuple(steps),
        outputs=("logits",),
    )


def _step(
    function: Function, layer: int | None, arguments: tuple[str, ...], results: tuple[str, ...]
) -> Step:
    prefix = "" if layer is None else f"layer.{layer}."
    return Step(
        function=function.name,
        layer=layer,
        arguments=arguments,
        results=results,
        weights={weight.name: prefix + weight.name for weight in function.weights},
        state={slot.name: prefix + slot.name for slot in function.state},
    )


def toy(capture: tuple[str, ...] = ()) -> BuildIR:
    """Return the toy, without fusion groups and kernels; what is captured is live."""
    programs = tuple(_keep(program(phase), capture) for phase in ("prefill", "decode"))
    return BuildIR(
        circuit="toy",
        version=1,
        title="A two-layer llama",
        file="circuits/toy.circuit",
        parents=(),
        sources={"circuits/toy.circuit": "0" * 64},
        dtype="f32",
        dims=DIMS,
        capture=capture,
        programs=programs,
        bindings=tuple(_bindings(programs[0])),
        coverage=Coverage(used={}, ignored={}),
        givens=(),
    )


def _keep(program: Program, capture: tuple[str, ...]) -> Program:
    def keep(item: Edge) -> Edge:
        return msgspec.structs.replace(item, live=item.live or is_captured(item, capture))

    def keep_op(item: Op) -> Op:
        return msgspec.structs.replace(item, results=tuple(map(keep, item.results)))

    functions = tuple(
        msgspec.structs.replace(item, ops=tuple(map(keep_op, item.ops)))
        for item in program.functions
    )
    return msgspec.structs.replace(program, functions=functions)


def _bindings(program: Program) -> list[WeightBinding]:
    functions = {function.name: function for function in program.functions}
    return [
        WeightBinding(
            semantic=step.weights[weight.name],
            type=weight.type,
            sources=(step.weights[weight.name],),
            transforms=(),
            tied_to=None,
            span=span(1),
        )
        for step in program.steps
        for weight in functions[step.function].weights
    ]


def replace_layer_op(ir: BuildIR, op_id: str, /, **changes: object) -> BuildIR:
    """Return the toy with one op of its layer changed, in every phase."""
    programs = []
    for item in ir.programs:
        functions = tuple(
            msgspec.structs.replace(
                function,
                ops=tuple(
                    msgspec.structs.replace(each, **changes) if each.id == op_id else each
                    for each in function.ops
                ),
            )
            for function in item.functions
        )
        programs.append(msgspec.structs.replace(item, functions=functions))
    return msgspec.structs.replace(ir, programs=tuple(programs))
