"""A stable text of every level, one op a line: what people read, and what tests compare.

A line reads `results = operator(operands) {attributes} !contract @checkpoints kernel # place`.
Contracts are numbered once per dump. Non-goal: parsing it back; JSON is the form for machines.
"""

from collections.abc import Iterable, Iterator

import msgspec

from cke.codegen import build_ir, lowered_ir
from cke.codegen.build_ir import BuildIR
from cke.codegen.checkpoints import checkpoint_key
from cke.codegen.lowered_ir import LoweredIR
from cke.schemas import call_ir, graph_ir
from cke.schemas.call_ir import CallIR
from cke.schemas.graph_ir import GraphIR
from cke.schemas.ir import Contract, Dim, Edge, Parameter, Step, Value

AnyIR = BuildIR | GraphIR | LoweredIR | CallIR
AnyProgram = build_ir.Program | graph_ir.Program | lowered_ir.Program | call_ir.Program
AnyFunction = build_ir.Function | graph_ir.Function | lowered_ir.Function | call_ir.Function
AnyOp = build_ir.Op | graph_ir.Op


def dump(ir: AnyIR) -> str:
    """Return the text of a level; equal IR gives equal text."""
    return "\n".join(_lines(ir)) + "\n"


def _lines(ir: AnyIR) -> Iterator[str]:
    contracts = Contracts()
    body = [line for program in ir.programs for line in _program(program, contracts)]
    dims = " ".join(f"{name}={size}" for name, size in ir.dims.items())
    yield f"{type(ir).__name__} {ir.circuit}@{ir.version} {ir.dtype} {dims}"
    if isinstance(ir, BuildIR):
        yield from _decisions(ir)
    yield from contracts.lines()
    yield from body


def _decisions(ir: BuildIR) -> Iterator[str]:
    for given in ir.givens:
        layers = f" layers {_ranges(given.layers)}" if given.layers else ""
        name = f"{given.instance}.{given.name}" if given.instance else given.name
        yield f"given {name} = {text(given.value)}{layers}  # {given.supplied_by}"
    for binding in ir.bindings:
        sources = " + ".join(binding.sources)
        steps = "".join(
            f" | {step.kind}{_attributes(step.arguments)}" for step in binding.transforms
        )
        tied = f" tied {binding.tied_to}" if binding.tied_to else ""
        yield f"bind {binding.semantic}: {_sized(binding.type)} = {sources}{steps}{tied}"
    for resolution in ir.resolutions:
        ops = ", ".join(resolution.ops)
        yield f"kernel {resolution.phase}/{resolution.function} {ops} = {resolution.kernel_id}"
        for rejection in resolution.rejections:
            yield f"  rejects {rejection.kernel_id} at {rejection.stage}: {rejection.reason}"


def _program(program: AnyProgram, contracts: "Contracts") -> Iterator[str]:
    yield ""
    yield f"program {program.phase}({_typed(program.inputs)}) -> {', '.join(program.outputs)}"
    if isinstance(program, lowered_ir.Program | call_ir.Program):
        for slot in program.slots:
            yield f"  slot {slot.name}: {slot.kind}({_typed(slot.lanes)}){_bounds(slot)}"
    for step in program.steps:
        yield f"  {_step(step)}"
    for function in program.functions:
        yield from _function(function, contracts)


def _step(step: Step) -> str:
    layer = "" if step.layer is None else f"[{step.layer}]"
    scalars = "".join(f" {name}={value!r}" for name, value in step.scalars.items())
    return (
        f"{', '.join(step.results)} = {step.function}{layer}({', '.join(step.arguments)})"
        f"{scalars}{_renaming('weights', step.weights)}{_renaming('state', step.state)}"
    )


def _renaming(label: str, names: dict[str, str]) -> str:
    """Return ` weights layer.3.*` when all names gain one prefix, else each renaming."""
    if not names:
        return ""
    prefixes = {
        full.removesuffix(name) if full.endswith(name) else None for name, full in names.items()
    }
    if len(prefixes) == 1 and None not in prefixes:
        return f" {label} {prefixes.pop()}*"
    return f" {label} {', '.join(f'{name}={full}' for name, full in names.items())}"


def _function(function: AnyFunction, contracts: "Contracts") -> Iterator[str]:
    layers = f" layers {_ranges(function.layers)}" if function.layers else ""
    block = f" block {function.block}" if function.block else ""
    place = f"  # {function.span.file}:{function.span.line}" if function.span else ""
    yield ""
    results = ", ".join(function.results)
    head = f"function {function.name}({_typed(function.parameters)}) -> {results}"
    yield f"{head}{layers}{block}{place}"
    for scalar in function.scalars:
        yield f"  scalar {scalar.name}: {scalar.type.dtype}"
    for weight in function.weights:
        yield f"  weight {weight.name}: {_sized(weight.type)}"
    if isinstance(function, call_ir.Function):
        for fused in function.fused:
            yield f"  fused {fused.name} = {' + '.join(fused.members)} on axis {fused.axis}"
    for slot in function.state:
        yield f"  state {slot.name}: {slot.kind}({_typed(slot.lanes)}){_bounds(slot)}"
    for alias in function.aliases:
        yield f"  alias {_edge(alias)} = {alias.alias_of} @ {checkpoint_key(alias)}"
    if isinstance(function, lowered_ir.Function | call_ir.Function) and function.capture:
        yield f"  capture {', '.join(function.capture)}"
    yield from (f"  {line}" for line in _operations(function, contracts))


def _bounds(slot: object) -> str:
    window, keep = getattr(slot, "window", None), getattr(slot, "keep", None)
    return f"{f' window {window}' if window else ''}{f' keep {keep}' if keep else ''}"


def _operations(function: AnyFunction, contracts: "Contracts") -> Iterator[str]:
    if isinstance(function, call_ir.Function):
        yield from (_call(call, contracts) for call in function.calls)
    elif isinstance(function, lowered_ir.Function):
        for item in function.ops:
            scopes = ", ".join(item.scopes) or "-"
            yield f"{item.order:>3} scopes {scopes}: {_op(item.op, contracts)}"
    else:
        yield from (_op(op, contracts) for op in function.ops)


def _op(op: AnyOp, contracts: "Contracts") -> str:
    operands = [*([f"state {op.state}"] if op.state else [])]
    operands += [name or "-" for name in op.inputs]
    operands += ["-" if name is None else f"w {name}" for name in op.weights]
    operands += [f"{attribute}=scalar {name}" for attribute, name in op.scalars.items()]
    group = op.kernel.group if op.kernel else getattr(op, "group", None)
    kernel = f" -> {op.kernel.kernel_id}.{op.kernel.function}" if op.kernel else ""
    indices = f"[{', '.join(map(str, op.kernel.results))}]" if op.kernel and group else ""
    return (
        f"{_edges(op.results)} = {op.operator}({', '.join(operands)})"
        f"{_attributes({**op.attributes, **op.layout})} !{contracts.number(op.contract)}"
        f" @ {_checkpoints(op.results)} id {op.id}{f' group {group}' if group else ''}"
        f"{kernel}{indices}  # {op.span.file}:{op.span.line}"
    )


def _call(call: call_ir.Call, contracts: "Contracts") -> str:
    operands = [
        argument.name or "-"
        if argument.source in ("edge", "none")
        else f"{argument.operand}=scalar {argument.name}"
        if argument.source == "scalar"
        else f"{argument.source[:1] if argument.source == 'weight' else 'state'} {argument.name}"
        for argument in call.arguments
    ]
    covers = ", ".join(
        f"{member.op}:{member.operator}!{contracts.number(member.contract)}"
        f"[{', '.join(map(str, member.results))}]"
        for member in call.members
    )
    action = f" {call.cache.action} {call.cache.slot}" if call.cache else ""
    return (
        f"{_edges(call.results)} = {call.kernel_id}.{call.function}({', '.join(operands)})"
        f"{_attributes(call.attributes)}{action} @ {_checkpoints(call.results)}"
        f" id {call.id} covers {covers} scopes {', '.join(call.scopes) or '-'}"
        f"  # {call.span.file}:{call.span.line}"
    )


def _edges(edges: Iterable[Edge]) -> str:
    return ", ".join(map(_edge, edges))


def _edge(edge: Edge) -> str:
    dead = "" if edge.live else "dead "
    return f"{dead}{edge.name}: {edge.type.dtype}[{', '.join(edge.type.axes)}]"


def _checkpoints(edges: Iterable[Edge]) -> str:
    return ", ".join(f"{checkpoint_key(edge)}@{edge.checkpoint.version}" for edge in edges)


def _typed(parameters: Iterable[Parameter]) -> str:
    return ", ".join(
        f"{item.name}: {item.type.dtype}[{', '.join(item.type.axes)}]" for item in parameters
    )


def _sized(type_: object) -> str:
    axes: tuple[str, ...] = getattr(type_, "axes", ())
    shape: tuple[Dim, ...] = getattr(type_, "shape", ())
    pairs = zip(axes, shape, strict=True)
    return f"{getattr(type_, 'dtype', '')}[{', '.join(f'{axis}={size}' for axis, size in pairs)}]"


def _ranges(layers: tuple[int, ...]) -> str:
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _attributes(values: dict[str, Value]) -> str:
    if not values:
        return ""
    return " {" + ", ".join(f"{name}: {text(value)}" for name, value in values.items()) + "}"


def text(value: Value) -> str:
    """Return an attribute as the circuit language spells it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(text, value)) + "]"
    return value if isinstance(value, str) else repr(value)


class Contracts:
    """The contracts of a dump, numbered in the order in which they are met."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._contracts: list[Contract] = []

    def number(self, contract: Contract) -> int:
        """Return the contract's number, counting from 1."""
        key = msgspec.json.encode(contract, order="sorted")
        if key not in self._numbers:
            self._numbers[key] = len(self._contracts) + 1
            self._contracts.append(contract)
        return self._numbers[key]

    def lines(self) -> Iterator[str]:
        """Give one line per contract: its sections with their fields."""
        for number, contract in enumerate(self._contracts, 1):
            sections = msgspec.to_builtins(contract)
            fields = " ".join(
                f"{name}{_attributes(values)}" for name, values in sections.items() if values
            )
            yield f"contract !{number} {fields or 'asks for nothing'}"
