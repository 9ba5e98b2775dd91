"""LoweredIR → CallIR: one call per kernel, every argument with its source.

The members of a fusion group become one call. Their weights are concatenated along the first
axis, and the call splits its result into `sizes`, one per member.
"""

from collections.abc import Collection, Iterable, Iterator
from itertools import groupby

from cke.codegen import lowered_ir
from cke.codegen.lowered_ir import LoweredIR, ScheduledOp
from cke.codegen.passes.resolve_kernels import spread_operands
from cke.kernel_registry.operators import OPERATORS, kernel_arguments
from cke.schemas.call_ir import (
    Argument,
    CacheAction,
    Call,
    CallIR,
    Function,
    FusedWeight,
    Member,
    Program,
)
from cke.schemas.graph_ir import Op
from cke.schemas.ir import Parameter, TensorType, Value

LAYOUT_DEFAULTS: dict[str, Value] = {"axes": 1, "contract": 1, "heads": 1}
"""What kernels take of the layout when nothing is said: one trailing axis."""

CACHE_ACTIONS = {"cache": "append", "shift": "shift", "carry": "replace"}


def lower_lowered_to_call(ir: LoweredIR) -> CallIR:
    """Return the exact schedule of a LoweredIR."""
    return CallIR(
        circuit=ir.circuit,
        version=ir.version,
        title=ir.title,
        file=ir.file,
        dtype=ir.dtype,
        dims=ir.dims,
        programs=tuple(map(_lower_program, ir.programs)),
    )


def _lower_program(program: lowered_ir.Program) -> Program:
    return Program(
        phase=program.phase,
        inputs=program.inputs,
        functions=tuple(map(_lower_function, program.functions)),
        steps=program.steps,
        slots=program.slots,
        outputs=program.outputs,
    )


def _lower_function(function: lowered_ir.Function) -> Function:
    groups = [tuple(items) for _, items in groupby(function.ops, key=_call_id)]
    types = {weight.name: weight.type for weight in function.weights}
    fused = tuple(weight for group in groups for weight in _fuse_weights(group))
    kinds = {slot.name: slot.kind for slot in function.state}
    return Function(
        name=function.name,
        parameters=function.parameters,
        weights=tuple(_called_weights(function.weights, fused)),
        fused=fused,
        scalars=function.scalars,
        state=function.state,
        calls=tuple(_lower_group(group, fused, types, kinds) for group in groups),
        results=function.results,
        layers=function.layers,
        aliases=function.aliases,
        capture=function.capture,
        block=function.block,
        span=function.span,
    )


def _call_id(item: ScheduledOp) -> str:
    return item.op.kernel.group or item.op.id


def _fuse_weights(group: tuple[ScheduledOp, ...]) -> Iterator[FusedWeight]:
    """Give one fused weight per weight operand that the members of the group have."""
    if len(group) == 1:
        return
    operands = OPERATORS[group[0].op.operator].weights
    for index, operand in enumerate(operands):
        names = tuple(name for item in group if (name := item.op.weights[index]) is not None)
        if names:
            assert len(names) == len(group), f"{names} is a part of `{_call_id(group[0])}` only"
            yield FusedWeight(name=f"{_call_id(group[0])}.{operand.name}", members=names, axis=0)


def _called_weights(
    weights: Iterable[Parameter], fused: tuple[FusedWeight, ...]
) -> Iterator[Parameter]:
    """Give the weights as called: a fused one in the place of its first member."""
    by_name = {weight.name: weight.type for weight in weights}
    owner = {member: weight for weight in fused for member in weight.members}
    for name, type_ in by_name.items():
        if name not in owner:
            yield Parameter(name=name, type=type_)
        elif owner[name].members[0] == name:
            members = [by_name[member] for member in owner[name].members]
            yield Parameter(name=owner[name].name, type=concatenate_types(members))


def concatenate_types(types: list[TensorType]) -> TensorType:
    """Return the type of arrays concatenated along their first axis."""
    shape = (sum(int(type_.shape[0]) for type_ in types), *types[0].shape[1:])
    axes = ("+".join(type_.axes[0] for type_ in types), *types[0].axes[1:])
    return TensorType(axes=axes, shape=shape, dtype=types[0].dtype)


def _lower_group(
    group: tuple[ScheduledOp, ...],
    fused: tuple[FusedWeight, ...],
    types: dict[str, TensorType],
    kinds: dict[str, str],
) -> Call:
    first = group[0].op
    constants = kernel_arguments(OPERATORS[first.operator], first.attributes, first.layout)
    if len(group) > 1:
        constants["sizes"] = [types[item.op.weights[0] or ""].shape[0] for item in group]
    return Call(
        id=_call_id(group[0]),
        kernel_id=first.kernel.kernel_id,
        function=first.kernel.function,
        contract_id=first.kernel.contract_id,
        arguments=tuple(_arguments(first, fused, types)),
        attributes=constants,
        implied=tuple(_implied(first, constants)),
        results=tuple(edge for item in group for edge in item.op.results),
        scopes=tuple(dict.fromkeys(scope for item in group for scope in item.scopes)),
        members=tuple(_member(item.op) for item in group),
        cache=_cache_action(first, kinds),
        span=first.span,
    )


def _implied(op: Op, constants: dict[str, Value]) -> Iterator[str]:
    """Give the arguments whose value is the default of the operator, or of every layout."""
    declared = {item.name: item.default for item in OPERATORS[op.operator].attributes}
    defaults = LAYOUT_DEFAULTS | declared
    for name, value in constants.items():
        if name in defaults and type(value) is type(defaults[name]) and value == defaults[name]:
            yield name


def _arguments(
    op: Op, fused: tuple[FusedWeight, ...], types: dict[str, TensorType]
) -> Iterator[Argument]:
    operator = OPERATORS[op.operator]
    owner = {member: weight.name for weight in fused for member in weight.members}
    if op.state is not None:
        yield Argument(source="state", name=op.state, operand="slot")
    for operand, name in zip(
        spread_operands(operator.inputs, len(op.inputs)), op.inputs, strict=True
    ):
        yield _argument(operand, name, types)
    for weight, name in zip(operator.weights, op.weights, strict=True):
        called = None if name is None else owner.get(name, name)
        yield _argument(weight.name, called, {*types, *owner.values()})
    for attribute, scalar in op.scalars.items():
        yield Argument(source="scalar", name=scalar, operand=attribute)


def _argument(operand: str, name: str | None, weights: Collection[str]) -> Argument:
    if name is None:
        return Argument(source="none", name=None, operand=operand)
    return Argument(source="weight" if name in weights else "edge", name=name, operand=operand)


def _member(op: Op) -> Member:
    return Member(
        op=op.id,
        operator=op.operator,
        contract=op.contract,
        results=op.kernel.results,
        span=op.span,
    )


def _cache_action(op: Op, kinds: dict[str, str]) -> CacheAction | None:
    if op.state is None:
        return None
    return CacheAction(slot=op.state, action=CACHE_ACTIONS[kinds[op.state]])
