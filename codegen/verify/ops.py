"""What holds for an op at the levels that have ops: it is a row of the operator table."""

from collections.abc import Iterator

from cke.codegen import build_ir
from cke.codegen.verify.dataflow import Unit
from cke.kernel_registry.operators import OPERATORS
from cke.kernel_registry.operators.base import Operand
from cke.schemas import graph_ir

AnyOp = build_ir.Op | graph_ir.Op


def op_unit(op: AnyOp) -> Unit:
    """Return an op as a unit of dataflow."""
    return Unit(
        id=op.id,
        span=op.span,
        reads=tuple(name for name in op.inputs if name is not None),
        weights=tuple(name for name in op.weights if name is not None),
        scalars=tuple(op.scalars.values()),
        state=op.state,
        results=op.results,
    )


def op_problems(op: AnyOp) -> Iterator[str]:
    """Give every way in which an op differs from its row of the operator table."""
    where = f"{op.span}: `{op.id}`"
    operator = OPERATORS.get(op.operator)
    if operator is None:
        yield f"{where} uses `{op.operator}`, which is no operator"
        return
    yield from _operand_problems(where, "inputs", operator.inputs, op.inputs)
    yield from _operand_problems(where, "weights", operator.weights, op.weights)
    names = {attribute.name for attribute in operator.attributes}
    given = {*op.attributes, *op.scalars}
    if given != names or set(op.attributes) & set(op.scalars):
        yield f"{where} expects attributes {sorted(names)}, got {sorted(given)}"
    if (operator.state is None) != (op.state is None):
        yield f"{where} expects state {operator.state}, got {op.state}"


def _operand_problems(
    where: str, what: str, operands: tuple[Operand, ...], names: tuple[str | None, ...]
) -> Iterator[str]:
    variadic = any(operand.variadic for operand in operands)
    if len(names) != len(operands) and not (variadic and len(names) >= len(operands)):
        yield f"{where} expects {len(operands)} {what}, got {len(names)}"
        return
    if variadic:
        return
    for operand, name in zip(operands, names, strict=True):
        if name is None and operand.absent is None:
            yield f"{where} lacks `{operand.name}`"
