"""The rules of GraphIR."""

from collections.abc import Iterator

from cke.codegen.verify.dataflow import Flow, flow_problems, program_problems
from cke.codegen.verify.invariant import require_none
from cke.codegen.verify.ops import op_problems, op_unit
from cke.kernel_registry.operators import OPERATORS
from cke.kernel_registry.operators.base import ShapeError
from cke.schemas.graph_ir import Function, GraphIR, Op
from cke.schemas.ir import TensorType


def verify_graph(ir: GraphIR) -> None:
    """Check dataflow, the operator table, and that every edge has its operator's type."""
    require_none(list(_problems(ir)), ir)


def _problems(ir: GraphIR) -> Iterator[str]:
    for program in ir.programs:
        yield from program_problems(program)
        for function in program.functions:
            yield from flow_problems(graph_flow(function))
            yield from (problem for op in function.ops for problem in op_problems(op))
            yield from _type_problems(function)


def graph_flow(function: Function) -> Flow:
    """Return a function as units of dataflow."""
    return Flow(
        function=function,
        units=tuple(map(op_unit, function.ops)),
        owned=tuple(weight.name for weight in function.weights),
    )


def _type_problems(function: Function) -> Iterator[str]:
    types = {item.name: item.type for item in (*function.parameters, *function.weights)}
    for op in function.ops:
        yield from _op_type_problems(op, types)
        types.update((edge.name, edge.type) for edge in op.results)


def _op_type_problems(op: Op, types: dict[str, TensorType]) -> Iterator[str]:
    operator = OPERATORS[op.operator]
    attributes = {**op.attributes, **dict.fromkeys(op.scalars, 1.0)}
    try:
        inferred = operator.shape_rule(
            [None if name is None else types.get(name) for name in op.inputs],
            [None if name is None else types.get(name) for name in op.weights],
            attributes,
        )
    except ShapeError as error:
        yield f"{op.span}: `{op.id}`: {error}"
        return
    for edge, type_ in zip(op.results, inferred.results, strict=True):
        if (edge.type.axes, edge.type.shape) != (type_.axes, type_.shape):
            yield f"{op.span}: `{edge.name}` has axes {type_.axes}, got {edge.type.axes}"
    if dict(op.layout) != inferred.layout:
        yield f"{op.span}: `{op.id}` has layout {inferred.layout}, got {op.layout}"
