"""The rules of LoweredIR."""

from collections.abc import Iterator
from itertools import groupby

from cke.codegen.lowered_ir import Function, LoweredIR, Program
from cke.codegen.verify.dataflow import Flow, flow_problems, program_problems
from cke.codegen.verify.invariant import require_none
from cke.codegen.verify.ops import op_unit


def verify_lowered(ir: LoweredIR) -> None:
    """Check order, scopes and slots: groups are contiguous, every slot has one owner."""
    require_none(list(_problems(ir)), ir)


def _problems(ir: LoweredIR) -> Iterator[str]:
    for program in ir.programs:
        yield from program_problems(program)
        yield from _slot_problems(program)
        for function in program.functions:
            flow = Flow(
                function=function,
                units=tuple(op_unit(item.op) for item in function.ops),
                owned=tuple(weight.name for weight in function.weights),
            )
            yield from flow_problems(flow)
            yield from _order_problems(function)


def _slot_problems(program: Program) -> Iterator[str]:
    assigned = [slot for step in program.steps for slot in step.state.values()]
    if sorted(assigned) != sorted(slot.name for slot in program.slots):
        yield f"{program.phase}: slots differ from those that the steps name"
    if len(set(assigned)) != len(assigned):
        yield f"{program.phase}: a state slot has two owners"


def _order_problems(function: Function) -> Iterator[str]:
    if [item.order for item in function.ops] != list(range(len(function.ops))):
        yield f"function `{function.name}`: ops are not numbered in order"
    groups = [name for name, _ in groupby(item.op.kernel.group for item in function.ops) if name]
    if len(set(groups)) != len(groups):
        yield f"function `{function.name}`: a fusion group is not contiguous"
    for item in function.ops:
        live = {edge.checkpoint.name for edge in item.op.results if edge.live}
        if not live <= set(item.scopes):
            yield f"{item.op.span}: `{item.op.id}` lacks the scope of a live edge"
