"""The rules of BuildIR."""

from collections.abc import Iterator

from cke.codegen.build_ir import BuildIR, Function, Program
from cke.codegen.verify.dataflow import Flow, flow_problems, program_problems
from cke.codegen.verify.invariant import require_none
from cke.codegen.verify.ops import op_problems, op_unit


def verify_build(ir: BuildIR) -> None:
    """Check that every op is a row of the table, and every edge, weight and step is defined."""
    require_none(list(_problems(ir)), ir)


def _problems(ir: BuildIR) -> Iterator[str]:
    bound = {binding.semantic for binding in ir.bindings}
    for program in ir.programs:
        yield from program_problems(program)
        yield from _weight_problems(program, bound)
        for function in program.functions:
            yield from flow_problems(_flow(function))
            for op in function.ops:
                yield from op_problems(op)
            yield from _kernel_problems(function, bool(ir.resolutions))


def _flow(function: Function) -> Flow:
    return Flow(
        function=function,
        units=tuple(map(op_unit, function.ops)),
        owned=tuple(weight.name for weight in function.weights),
    )


def _weight_problems(program: Program, bound: set[str]) -> Iterator[str]:
    functions = {function.name: function for function in program.functions}
    for step in program.steps:
        expected = {weight.name for weight in functions[step.function].weights}
        if set(step.weights) != expected:
            yield (
                f"{program.phase}: `{step.function}` expects weights {sorted(expected)}, "
                f"got {sorted(step.weights)}"
            )
        for semantic in step.weights.values():
            if semantic not in bound:
                yield f"{program.phase}: weight `{semantic}` has no binding"


def _kernel_problems(function: Function, resolved: bool) -> Iterator[str]:
    for op in function.ops:
        if resolved and op.kernel is None:
            yield f"{op.span}: `{op.id}` has no kernel"
        if op.kernel is not None and len(op.kernel.results) != len(op.results):
            yield f"{op.span}: `{op.id}` has {len(op.results)} results, its kernel names others"
