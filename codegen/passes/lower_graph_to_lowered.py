"""GraphIR → LoweredIR: fix the order of ops, name their scopes and assign state slots."""

from collections.abc import Iterator

import msgspec

from cke.codegen.checkpoints import checkpoint_key, is_captured
from cke.codegen.lowered_ir import Function, LoweredIR, Program, ScheduledOp
from cke.schemas import graph_ir
from cke.schemas.ir import StateSlot


def lower_graph_to_lowered(ir: graph_ir.GraphIR) -> LoweredIR:
    """Return the ops in the order in which they run, each with its scopes and slots."""
    return LoweredIR(
        circuit=ir.circuit,
        version=ir.version,
        title=ir.title,
        file=ir.file,
        dtype=ir.dtype,
        dims=ir.dims,
        capture=ir.capture,
        programs=tuple(_lower_program(program, ir.capture) for program in ir.programs),
    )


def _lower_program(program: graph_ir.Program, capture: tuple[str, ...]) -> Program:
    return Program(
        phase=program.phase,
        inputs=program.inputs,
        functions=tuple(_lower_function(function, capture) for function in program.functions),
        steps=program.steps,
        slots=tuple(_slots(program)),
        outputs=program.outputs,
    )


def _lower_function(function: graph_ir.Function, capture: tuple[str, ...]) -> Function:
    points = [
        (alias.alias_of, alias.checkpoint.name)
        for alias in function.aliases
        if alias.checkpoint.point is not None and alias.checkpoint.role is None
    ]
    return Function(
        name=function.name,
        parameters=function.parameters,
        weights=function.weights,
        scalars=function.scalars,
        state=function.state,
        ops=tuple(_schedule(op, order, points) for order, op in enumerate(function.ops)),
        results=function.results,
        layers=function.layers,
        aliases=function.aliases,
        capture=_captured(function, capture),
        block=function.block,
        span=function.span,
    )


def _schedule(op: graph_ir.Op, order: int, points: list[tuple[str | None, str]]) -> ScheduledOp:
    """Return the op with a scope per live edge; one without a point adds that of an alias."""
    scopes = []
    for edge in op.results:
        if edge.live:
            scopes.append(edge.checkpoint.name)
        if edge.live and edge.checkpoint.point is None:
            scopes += [point for alias_of, point in points if alias_of == edge.name]
    return ScheduledOp(order=order, op=op, scopes=tuple(dict.fromkeys(scopes)))


def _captured(function: graph_ir.Function, patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the keys that a pattern matches, in the order in which their edges are made."""
    edges = [edge for op in function.ops for edge in op.results]
    return tuple(
        checkpoint_key(edge) for edge in (*edges, *function.aliases) if is_captured(edge, patterns)
    )


def _slots(program: graph_ir.Program) -> Iterator[StateSlot]:
    functions = {function.name: function for function in program.functions}
    for step in program.steps:
        for slot in functions[step.function].state:
            yield msgspec.structs.replace(slot, name=step.state[slot.name])
