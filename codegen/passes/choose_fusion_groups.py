"""Group linears of one block instance that read the same edge: q, k and v, gate and up.

A group is one call over weights concatenated along their first axis, so its members must agree in
everything but that axis. The members move up to the first one, which reads nothing later.
"""

from collections.abc import Iterator

import msgspec

from cke.codegen.build_ir import BuildIR, Function, Op
from cke.kernel_registry.resolve import covers
from cke.schemas.ir import TensorType

FUSIBLE = "linear"


def choose_fusion_groups(ir: BuildIR) -> BuildIR:
    """Return the IR with `group` set on every op that a registered kernel can share a call with."""
    programs = tuple(
        msgspec.structs.replace(
            program,
            functions=tuple(_group_function(item, program.phase) for item in program.functions),
        )
        for program in ir.programs
    )
    return msgspec.structs.replace(ir, programs=programs)


def _group_function(function: Function, phase: str) -> Function:
    group_of: dict[str, str] = {}
    members: dict[str, tuple[Op, ...]] = {}
    for group in _candidates(function):
        if covers(FUSIBLE, len(group), phase):
            name = group_name(group)
            group_of.update((op.id, name) for op in group)
            members[group[0].id] = tuple(msgspec.structs.replace(op, group=name) for op in group)
    ops: list[Op] = []
    for op in function.ops:
        if op.id in members:
            ops.extend(members[op.id])
        elif op.id not in group_of:
            ops.append(op)
    return msgspec.structs.replace(function, ops=tuple(ops))


def _candidates(function: Function) -> Iterator[tuple[Op, ...]]:
    """Give the ops that agree in everything but the first axis of their weights."""
    types = {weight.name: weight.type for weight in function.weights}
    alike: dict[bytes, list[Op]] = {}
    for op in function.ops:
        if op.operator == FUSIBLE and not op.scalars:
            alike.setdefault(_signature(op, types), []).append(op)
    return (tuple(ops) for ops in alike.values() if len(ops) > 1)


def _signature(op: Op, types: dict[str, TensorType]) -> bytes:
    weights = [None if name is None else types[name] for name in op.weights]
    kept = [None if type_ is None else (type_.shape[1:], type_.dtype) for type_ in weights]
    parts = (op.instance, op.inputs, kept, op.attributes, op.layout, op.contract)
    return msgspec.json.encode(parts, order="sorted")


def group_name(group: tuple[Op, ...]) -> str:
    """Return `attention.qkv` for q_proj, k_proj and v_proj of `attention`."""
    names = [op.id.split(".")[-1] for op in group]
    suffix = "_" + names[0].split("_")[-1]
    if all(name.endswith(suffix) and name != suffix for name in names):
        names = [name.removesuffix(suffix) for name in names]
    joined = ("" if all(len(name) == 1 for name in names) else "_").join(names)
    return ".".join([*group[0].id.split(".")[:-1], joined])
