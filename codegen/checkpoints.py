"""Every checkpoint bound to its operation, kernel, function, phase, layers, layout and axes.

The same table is collected from every level; equality of the four tables is what keeps a
checkpoint's meaning fixed on its way from the circuit to the call.
"""

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

import msgspec

from cke.codegen import build_ir, lowered_ir
from cke.schemas import call_ir, graph_ir
from cke.schemas.ir import Edge, Parameter
from cke.schemas.manifest import CheckpointBinding


class Made(msgspec.Struct, frozen=True):
    """An edge and the op, kernel and call that make it; `result` counts in the call's results.

    A parameter is made by no op and has no edge here; an alias of it gives it a checkpoint.
    """

    edge: Edge | None
    operation: str
    operator: str
    call: str
    kernel_id: str
    kernel_function: str
    result: int


class Owner(msgspec.Struct, frozen=True):
    """The function whose checkpoints are collected, reduced to what every level has."""

    phase: str
    name: str
    layers: tuple[int, ...]
    parameters: tuple[Parameter, ...]
    aliases: tuple[Edge, ...]


def checkpoint_key(edge: Edge) -> str:
    """Return the key of the edge's capture, such as `attention.kv_append.new_key`.

    It is the checkpoint's name, with the role appended when there is one.
    """
    checkpoint = edge.checkpoint
    return checkpoint.name if checkpoint.role is None else f"{checkpoint.name}.{checkpoint.role}"


def is_captured(edge: Edge, patterns: Iterable[str]) -> bool:
    """Tell whether a build captures the edge: its key matches a pattern, `*` matches every key."""
    key = checkpoint_key(edge)
    return any(fnmatchcase(key, pattern) for pattern in patterns)


def unmatched_captures(ir: build_ir.BuildIR) -> tuple[str, ...]:
    """Return the capture patterns that match no checkpoint of any function."""
    edges = [
        edge
        for program in ir.programs
        for function in program.functions
        for edge in (*function.aliases, *(edge for op in function.ops for edge in op.results))
    ]
    return tuple(
        pattern
        for pattern in ir.capture
        if not any(is_captured(edge, (pattern,)) for edge in edges)
    )


def build_checkpoints(ir: build_ir.BuildIR) -> tuple[CheckpointBinding, ...]:
    """Return the checkpoints of a BuildIR whose kernels are resolved."""
    return tuple(
        binding
        for program in ir.programs
        for function in program.functions
        for binding in _bindings(_owner(program.phase, function), _made_by_ops(function.ops))
    )


def graph_checkpoints(ir: graph_ir.GraphIR) -> tuple[CheckpointBinding, ...]:
    """Return the checkpoints of a GraphIR."""
    return tuple(
        binding
        for program in ir.programs
        for function in program.functions
        for binding in _bindings(_owner(program.phase, function), _made_by_ops(function.ops))
    )


def lowered_checkpoints(ir: lowered_ir.LoweredIR) -> tuple[CheckpointBinding, ...]:
    """Return the checkpoints of a LoweredIR."""
    return tuple(
        binding
        for program in ir.programs
        for function in program.functions
        for binding in _bindings(
            _owner(program.phase, function), _made_by_ops(item.op for item in function.ops)
        )
    )


def call_checkpoints(ir: call_ir.CallIR) -> tuple[CheckpointBinding, ...]:
    """Return the checkpoints of a CallIR."""
    return tuple(
        binding
        for program in ir.programs
        for function in program.functions
        for binding in _bindings(_owner(program.phase, function), _made_by_calls(function.calls))
    )


def _owner(
    phase: str,
    function: build_ir.Function | graph_ir.Function | lowered_ir.Function | call_ir.Function,
) -> Owner:
    return Owner(phase, function.name, function.layers, function.parameters, function.aliases)


def _made_by_ops(ops: Iterable[build_ir.Op | graph_ir.Op]) -> Iterator[Made]:
    for op in ops:
        kernel = op.kernel
        assert kernel is not None, f"`{op.id}` has no kernel"
        call = kernel.group or op.id
        for edge, result in zip(op.results, kernel.results, strict=True):
            yield Made(edge, op.id, op.operator, call, kernel.kernel_id, kernel.function, result)


def _made_by_calls(calls: Iterable[call_ir.Call]) -> Iterator[Made]:
    for call in calls:
        for member in call.members:
            for result in member.results:
                yield Made(
                    call.results[result],
                    member.op,
                    member.operator,
                    call.id,
                    call.kernel_id,
                    call.function,
                    result,
                )


def _bindings(owner: Owner, made: Iterator[Made]) -> Iterator[CheckpointBinding]:
    by_edge = {item.edge.name: item for item in made if item.edge is not None}
    for parameter in owner.parameters:
        by_edge[parameter.name] = Made(None, parameter.name, "parameter", "", "", "", 0)
    edges = [item.edge for item in by_edge.values() if item.edge is not None]
    for order, edge in enumerate([*edges, *owner.aliases]):
        yield _binding(owner, by_edge[edge.alias_of or edge.name], edge, order)


def _binding(owner: Owner, made: Made, edge: Edge, order: int) -> CheckpointBinding:
    return CheckpointBinding(
        checkpoint=edge.checkpoint,
        edge=edge.name,
        type=edge.type,
        phase=owner.phase,
        function=owner.name,
        layers=owner.layers,
        operation=made.operation,
        operator=made.operator,
        call=made.call,
        kernel_id=made.kernel_id,
        kernel_function=made.kernel_function,
        result=made.result,
        alias_of=edge.alias_of,
        order=order,
        live=edge.live,
    )
