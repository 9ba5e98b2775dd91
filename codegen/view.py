"""CallIR → view: everything that the templates lay out, decided here.

A view holds finished lines of Python. Names, imports, scopes, captures and line breaks are
decided in this file, in `names` and in `step_view`; a template only says what follows what.
"""

import textwrap
from collections.abc import Iterator

import msgspec

from cke.codegen.checkpoints import checkpoint_key
from cke.codegen.names import Names, base_name, kernel_names, scalar_name
from cke.codegen.python_text import WIDTH, bracketed, collection, string
from cke.codegen.step_view import StepView, step_view
from cke.schemas.call_ir import Argument, Call, CallIR, Function, Program
from cke.schemas.ir import Dim, Edge, Parameter, StateSlot, TensorType

GLOSSARY = {"B": "batch", "T": "query positions", "S": "key positions"}


class FunctionView(msgspec.Struct, frozen=True):
    """One function as lines: its signature, its docstring and its body."""

    signature: tuple[str, ...]
    docstring: tuple[str, ...]
    body: tuple[str, ...]


class ModuleView(msgspec.Struct, frozen=True):
    """One module, for one phase."""

    docstring: tuple[str, ...]
    imports: tuple[str, ...]
    functions: tuple[FunctionView, ...]
    step: StepView


def module_view(ir: CallIR, program: Program) -> ModuleView:
    """Return the module of one phase."""
    kernels = kernel_names(program)
    reserved = {*kernels.values(), *(function.name for function in program.functions)}
    return ModuleView(
        docstring=tuple(_module_docstring(ir, program)),
        imports=tuple(_imports(program, kernels)),
        functions=tuple(_function_view(item, kernels, reserved) for item in program.functions),
        step=step_view(program),
    )


class PackageView(msgspec.Struct, frozen=True):
    """The `__init__` of a package."""

    docstring: tuple[str, ...]


def package_view(ir: CallIR) -> PackageView:
    """Return the `__init__` of a package: what it is, and which module does what."""
    lines = [*_title(ir), ""]
    lines += _wrap(
        f"{ir.circuit}@{ir.version} in {ir.dtype}, generated from {ir.file}. Do not edit: change "
        "the circuit and run `cke build`. `manifest.json` holds every decision behind the code."
    )
    return PackageView(docstring=tuple(lines))


def _title(ir: CallIR) -> list[str]:
    """Return the circuit's title as the first line, or as a paragraph when it is too long."""
    title = ir.title if ir.title.endswith(".") else f"{ir.title}."
    if len(title) + len('"""') <= WIDTH:
        return [title]
    return [f"The circuit {ir.circuit}@{ir.version}.", "", *_wrap(title)]


def _module_docstring(ir: CallIR, program: Program) -> Iterator[str]:
    yield from (*_title(ir), "")
    sizes = ", ".join(f"{name}={size}" for name, size in ir.dims.items())
    symbols = ", ".join(f"{name} is {meaning}" for name, meaning in GLOSSARY.items())
    yield from _wrap(
        f"The {program.phase} phase of {ir.circuit}@{ir.version} in {ir.dtype}, generated from "
        f"{ir.file}. Do not edit: change the circuit and run `cke build`."
    )
    yield ""
    yield from _wrap(f"{symbols}; {sizes}.")


def _imports(program: Program, kernels: dict[tuple[str, str], str]) -> Iterator[str]:
    captures = any(function.capture for function in program.functions)
    stateful = any(function.state for function in program.functions)
    yield "from collections.abc import Mapping"
    yield ""
    yield "from jax import Array, named_scope"
    yield ""
    for (kernel_id, function), name in sorted(kernels.items()):
        rename = "" if name == function else f" as {name}"
        head = f"from cke.kernel_registry.kernels.{kernel_id} import "
        line = f"{head}{function}{rename}"
        yield from [line] if len(line) <= WIDTH else [f"{head}(", f"    {function}{rename},", ")"]
    types = ["Captured"] * captures + ["State"] * stateful + ["Weights"]
    yield f"from cke.runtime.types import {', '.join(types)}"


def _function_view(
    function: Function, kernels: dict[tuple[str, str], str], reserved: set[str]
) -> FunctionView:
    return FunctionView(
        signature=tuple(_signature(function)),
        docstring=tuple(_docstring(function)),
        body=tuple(_body(function, kernels, reserved)),
    )


def _signature(function: Function) -> list[str]:
    items = ["w: Weights", *(["state: State"] if function.state else [])]
    items += [f"{base_name(parameter.name)}: Array" for parameter in function.parameters]
    if function.scalars:
        items += [
            "*",
            *(f"{scalar_name(scalar.name)}: Array | float" for scalar in function.scalars),
        ]
    return bracketed(f"def {function.name}(", items, f") -> {_returned_type(function)}:", 0)


def _returned_type(function: Function) -> str:
    types = ["Array"] * len(function.results)
    types += ["State"] * bool(function.state) + ["Captured"] * bool(function.capture)
    return types[0] if len(types) == 1 else f"tuple[{', '.join(types)}]"


def _docstring(function: Function) -> Iterator[str]:
    where = f" ({function.span.file}:{function.span.line})" if function.span else ""
    summary = f"{_layer_range(function)}block `{function.block}`{where}."
    if len(summary) + len('    """') <= WIDTH:
        yield from (summary, "")
    else:
        yield from (f"{len(function.layers)} layers: block `{function.block}`{where}.", "")
        yield from _wrap(f"{layer_ranges(function.layers)}.", indent=4)
    takes = ", ".join(_typed(item.name, item.type) for item in function.parameters)
    gives = ", ".join(_typed(name, _type_of(function, name)) for name in function.results)
    yield from _wrap(f"Takes {takes}; gives {gives}.", indent=4)
    for slot in function.state:
        yield from _wrap(_slot_text(slot), indent=4)
    yield from _weight_lines(function)


def _typed(name: str, type_: TensorType) -> str:
    return f"{base_name(name)} {type_text(type_)}"


def _layer_range(function: Function) -> str:
    if not function.layers:
        return f"{function.name.capitalize()}: "
    return f"{layer_ranges(function.layers)}: "


def layer_ranges(layers: tuple[int, ...]) -> str:
    """Return `Layer 3`, or `Layers 0-4, 6-10` for runs of consecutive layers."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"Layer{'s' if len(layers) > 1 else ''} {text}"


def type_text(type_: TensorType) -> str:
    """Return `f32[B, T, D]`: the dtype and the named axes."""
    return f"{type_.dtype}[{', '.join(type_.axes)}]"


def _slot_text(slot: StateSlot) -> str:
    lanes = ", ".join(f"{lane.name} {type_text(lane.type)}" for lane in slot.lanes)
    window = f", window {slot.window}" if slot.window is not None else ""
    return f"Keeps {slot.name}, a {slot.kind} of {lanes}{window}."


def _weight_lines(function: Function) -> Iterator[str]:
    if not function.weights:
        return
    members = {fused.name: fused.members for fused in function.fused}
    yield ""
    yield "Weights:"
    for weight in function.weights:
        made_of = f" of {', '.join(members[weight.name])}" if weight.name in members else ""
        yield from _wrap(f"{weight.name}: {_sized(weight)}{made_of}", indent=8, first=4)


def _sized(weight: Parameter) -> str:
    pairs = zip(weight.type.axes, weight.type.shape, strict=True)
    return f"{weight.type.dtype}[{', '.join(_sized_axis(axis, size) for axis, size in pairs)}]"


def _sized_axis(axis: str, size: Dim) -> str:
    return f"{axis}={size}"


def _wrap(text: str, indent: int = 0, first: int = 0) -> list[str]:
    return textwrap.wrap(
        text,
        width=WIDTH - (4 if indent else 0),
        initial_indent=" " * first,
        subsequent_indent=" " * (indent if first else 0),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _type_of(function: Function, name: str) -> TensorType:
    edges = {edge.name: edge.type for call in function.calls for edge in call.results}
    parameters = {item.name: item.type for item in function.parameters}
    return (edges | parameters)[name]


def _body(
    function: Function, kernels: dict[tuple[str, str], str], reserved: set[str]
) -> Iterator[str]:
    names = Names(function, reserved)
    aliases: dict[str, list[Edge]] = {}
    for edge in function.aliases:
        aliases.setdefault(edge.alias_of or "", []).append(edge)
    if function.capture:
        yield "    captured: Captured = {}"
    for parameter in function.parameters:
        for edge in aliases.get(parameter.name, []):
            yield from _capture(function, edge, names[parameter.name])
    for index, call in enumerate(function.calls):
        yield from _call(call, index, names, kernels)
        for edge in call.results:
            for captured in (edge, *aliases.get(edge.name, [])):
                yield from _capture(function, captured, names.get(edge.name))
    yield from _return(function, names)


def _capture(function: Function, edge: Edge, name: str | None) -> Iterator[str]:
    key = checkpoint_key(edge)
    if key in function.capture:
        yield f"    captured[{string(key)}] = {name}"


def _call(
    call: Call, index: int, names: Names, kernels: dict[tuple[str, str], str]
) -> Iterator[str]:
    arguments = list(_arguments(call, names))
    constants = [item for item in call.attributes.items() if item[0] not in call.implied]
    targets = names.bind(call, index)
    yield from _scopes(call)
    head = f"{', '.join(targets)} = {kernels[call.kernel_id, call.function]}("
    yield from bracketed(head, [*arguments, *constants], ")", 8, f"  # {source_line(call)}")


def _scopes(call: Call) -> list[str]:
    scopes = [f"named_scope({string(scope)})" for scope in call.scopes]
    flat = f"    with {', '.join(scopes)}:"
    return [flat] if len(flat) <= WIDTH else collection("with (", scopes, "):", 4)


def source_line(call: Call) -> str:
    """Return the circuit line of a call, or the range of lines of its members in one file."""
    lines = [member.span.line for member in call.members if member.span.file == call.span.file]
    last = f"-{max(lines)}" if max(lines) > min(lines) else ""
    return f"{call.span.file}:{min(lines)}{last}"


def _arguments(call: Call, names: Names) -> Iterator[str]:
    """Give the arguments as text: an absent one is left out, and those after it go by keyword."""
    by_keyword = False
    for argument in call.arguments:
        if argument.name is None:
            by_keyword = True
            continue
        keyword = by_keyword or argument.source == "scalar"
        yield f"{argument.operand}=" * keyword + _value(argument, argument.name, names)


def _value(argument: Argument, name: str, names: Names) -> str:
    if argument.source == "weight":
        return f"w[{string(name)}]"
    return f"state[{string(name)}]" if argument.source == "state" else names[name]


def _return(function: Function, names: Names) -> list[str]:
    items = [names[name] for name in function.results]
    if function.state:
        entries = (f"{string(slot.name)}: {names.slots[slot.name]}" for slot in function.state)
        items.append("{" + ", ".join(entries) + "}")
    if function.capture:
        items.append("captured")
    flat = f"    return {', '.join(items)}"
    return [flat] if len(flat) <= WIDTH else collection("return (", items, ")", 4)
