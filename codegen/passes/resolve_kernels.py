"""Give every op its one kernel, and record every provider that was rejected and why.

The members of a fusion group share one resolution, and each names its result of the call. All
ops without a provider are reported together.
"""

from collections.abc import Iterator
from itertools import groupby

import msgspec

from cke.codegen.build_ir import BuildIR, Function, Op, Program
from cke.errors import CkeError, Diagnostic
from cke.kernel_registry.operators import OPERATORS, Operator, kernel_arguments
from cke.kernel_registry.operators.base import Operand
from cke.kernel_registry.resolve import Request, contract_of, resolve
from cke.schemas.ir import KernelBinding, TensorType
from cke.schemas.manifest import Resolution


def resolve_kernels(ir: BuildIR) -> BuildIR:
    """Return the IR with `kernel` set on every op, and the resolutions behind it."""
    resolver = _Resolver(ir.dtype)
    programs = tuple(map(resolver.program, ir.programs))
    if resolver.problems:
        raise CkeError(resolver.problems)
    return msgspec.structs.replace(ir, programs=programs, resolutions=tuple(resolver.resolutions))


class _Resolver:
    def __init__(self, dtype: str) -> None:
        self._dtype = dtype
        self.resolutions: list[Resolution] = []
        self.problems: list[Diagnostic] = []

    def program(self, program: Program) -> Program:
        functions = tuple(self._function(item, program.phase) for item in program.functions)
        return msgspec.structs.replace(program, functions=functions)

    def _function(self, function: Function, phase: str) -> Function:
        types = {item.name: item.type for item in (*function.parameters, *function.weights)}
        ops: list[Op] = []
        for _, items in groupby(function.ops, key=lambda op: op.group or op.id):
            group = tuple(items)
            ops.extend(self._bound(group, _request(group, types, phase, function, self._dtype)))
            types.update((edge.name, edge.type) for op in group for edge in op.results)
        return msgspec.structs.replace(function, ops=tuple(ops))

    def _bound(self, group: tuple[Op, ...], request: Request) -> tuple[Op, ...]:
        try:
            resolution = resolve(request)
        except CkeError as error:
            self.problems.extend(error.diagnostics)
            return group
        self.resolutions.append(resolution)
        return tuple(_bindings(group, resolution))


def _request(
    group: tuple[Op, ...],
    types: dict[str, TensorType],
    phase: str,
    function: Function,
    dtype: str,
) -> Request:
    first = group[0]
    operator = OPERATORS[first.operator]
    live = {name for op in group for name in _live_results(op, operator)}
    return Request(
        operator=first.operator,
        phase=phase,
        function=function.name,
        ops=tuple(op.id for op in group),
        dtype=dtype,
        contract=first.contract,
        inputs=tuple(None if name is None else types[name] for name in first.inputs),
        weights=tuple(None if name is None else types[name] for name in first.weights),
        arguments=kernel_arguments(operator, first.attributes, first.layout),
        results=tuple(sorted(live)),
        span=first.span,
    )


def _live_results(op: Op, operator: Operator) -> Iterator[str]:
    names = spread_operands(operator.results, len(op.results))
    return (name for name, edge in zip(names, op.results, strict=True) if edge.live)


def spread_operands(operands: tuple[Operand, ...], count: int) -> Iterator[str]:
    """Give a name for each of `count` values; a variadic operand takes all that is left over."""
    for operand in operands:
        repeat = count - len(operands) + 1 if operand.variadic else 1
        yield from [operand.name] * repeat


def _bindings(group: tuple[Op, ...], resolution: Resolution) -> Iterator[Op]:
    function = contract_of(resolution.kernel_id).function
    start = 0
    for op in group:
        binding = KernelBinding(
            kernel_id=resolution.kernel_id,
            function=function,
            group=op.group,
            results=tuple(range(start, start + len(op.results))),
            contract_id=resolution.contract_id,
        )
        start += len(op.results)
        yield msgspec.structs.replace(op, kernel=binding)
