"""The rules of CallIR: what emission takes for granted."""

from collections.abc import Iterator

from cke.codegen.checkpoints import checkpoint_key
from cke.codegen.verify.dataflow import Flow, Unit, flow_problems, program_problems
from cke.codegen.verify.invariant import require_none
from cke.schemas.call_ir import Argument, Call, CallIR, Function


def verify_call(ir: CallIR) -> None:
    """Check that every argument has a source, every result a member, every capture a value."""
    require_none(list(_problems(ir)), ir)


def _problems(ir: CallIR) -> Iterator[str]:
    for program in ir.programs:
        yield from program_problems(program)
        for function in program.functions:
            flow = Flow(
                function=function,
                units=tuple(map(_unit, function.calls)),
                owned=tuple(weight.name for weight in function.weights),
            )
            yield from flow_problems(flow)
            yield from (problem for call in function.calls for problem in _call_problems(call))
            yield from _capture_problems(function)


def _unit(call: Call) -> Unit:
    return Unit(
        id=call.id,
        span=call.span,
        reads=_sources(call.arguments, "edge"),
        weights=_sources(call.arguments, "weight"),
        scalars=_sources(call.arguments, "scalar"),
        state=next(iter(_sources(call.arguments, "state")), None),
        results=call.results,
    )


def _sources(arguments: tuple[Argument, ...], source: str) -> tuple[str, ...]:
    return tuple(
        argument.name
        for argument in arguments
        if argument.source == source and argument.name is not None
    )


def _call_problems(call: Call) -> Iterator[str]:
    covered = [result for member in call.members for result in member.results]
    if sorted(covered) != list(range(len(call.results))):
        yield f"{call.span}: `{call.id}` has results that no single member gives"
    for argument in call.arguments:
        if (argument.name is None) != (argument.source == "none"):
            yield f"{call.span}: `{call.id}` has `{argument.operand}` without a source"
    if (call.cache is None) == any(argument.source == "state" for argument in call.arguments):
        yield f"{call.span}: `{call.id}` takes state and names no cache action, or the reverse"


def _capture_problems(function: Function) -> Iterator[str]:
    edges = [edge for call in function.calls for edge in call.results]
    live = {checkpoint_key(edge) for edge in edges if edge.live}
    names = {edge.name for edge in edges if edge.live} | {item.name for item in function.parameters}
    live |= {checkpoint_key(edge) for edge in function.aliases if edge.alias_of in names}
    for key in function.capture:
        if key not in live:
            yield f"function `{function.name}`: captures `{key}`, which is not live"
