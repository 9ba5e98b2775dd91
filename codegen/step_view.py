"""The whole step of a phase as lines: `LAYERS`, and the body of `step`.

Layers that hand their results on in the same way become one loop; anything else is written out,
one call per step.
"""

from collections.abc import Iterator
from itertools import pairwise

import msgspec

from cke.codegen.names import base_name, scalar_name, step_name
from cke.codegen.python_text import bracketed, string
from cke.schemas.call_ir import Function, Program
from cke.schemas.ir import Step


class StepView(msgspec.Struct, frozen=True):
    """`layers` is the right side of `LAYERS`, empty when the steps are written out."""

    layers: str
    scalars: tuple[str, ...]
    signature: tuple[str, ...]
    docstring: str
    body: tuple[str, ...]


def step_view(program: Program) -> StepView:
    """Return the `step` function of one phase."""
    functions = {function.name: function for function in program.functions}
    loop = _loop(program, functions)
    layers = [step.function for step in loop]
    return StepView(
        layers=sequence(layers) if layers else "",
        scalars=tuple(_scalar_table(loop)),
        signature=tuple(_signature(program)),
        docstring=_docstring(program),
        body=tuple(_body(program, functions, loop)),
    )


def sequence(items: list[str]) -> str:
    """Return a tuple expression, with what repeats written once: `(a, a, b) * 4 + (a,)`."""
    for period in range(1, len(items)):
        if all(item == items[index % period] for index, item in enumerate(items)):
            return _repeated(items, period)
    return _runs(items)


def _repeated(items: list[str], period: int) -> str:
    count, rest = divmod(len(items), period)
    block = _runs(items[:period])
    text = f"({block}) * {count}" if " " in block and "+" in block else f"{block} * {count}"
    return f"{text} + {_runs(items[:rest])}" if rest else text


def _runs(items: list[str]) -> str:
    runs: list[tuple[str, int]] = []
    for item in items:
        if runs and runs[-1][0] == item:
            runs[-1] = (item, runs[-1][1] + 1)
        else:
            runs.append((item, 1))
    if all(count == 1 for _, count in runs) and len(runs) > 1:
        return f"({', '.join(items)})"
    return " + ".join(f"({name},) * {n}" if n > 1 else f"({name},)" for name, n in runs)


def _loop(program: Program, functions: dict[str, Function]) -> list[Step]:
    """Return the layer steps when one loop can run them: in a row, and handed on alike."""
    steps = [step for step in program.steps if step.layer is not None]
    first = steps[0] if steps else None
    if first is None or len(steps) < 2:
        return []
    at = program.steps.index(first)
    if list(program.steps[at : at + len(steps)]) != steps:
        return []
    if [step.layer for step in steps] != list(range(len(steps))):
        return []
    forms = {_form(functions[step.function]) for step in steps}
    handed = {_handed_on(before, after) for before, after in pairwise(steps)}
    return steps if len(forms) == 1 and len(handed) == 1 and None not in handed else []


def _form(function: Function) -> tuple[object, ...]:
    return (
        len(function.parameters),
        len(function.results),
        bool(function.state),
        bool(function.capture),
        tuple(scalar.name for scalar in function.scalars),
    )


def _handed_on(before: Step, after: Step) -> tuple[int | None, ...] | None:
    """Return for each argument the result that it is, or None when it is the same argument."""
    handed: list[int | None] = []
    for index, name in enumerate(after.arguments):
        if name in before.results:
            handed.append(before.results.index(name))
        elif before.arguments[index] == name:
            handed.append(None)
        else:
            return None
    used = [result for result in handed if result is not None]
    return tuple(handed) if sorted(used) == list(range(len(before.results))) else None


def _scalar_table(loop: list[Step]) -> Iterator[str]:
    if not any(step.scalars for step in loop):
        return
    yield "SCALARS = ("
    for step in loop:
        entries = (f"{string(scalar_name(key))}: {value!r}" for key, value in step.scalars.items())
        yield f"    {{{', '.join(entries)}}},"
    yield ")"


def _flags(program: Program) -> tuple[bool, bool]:
    return (
        any(function.state for function in program.functions),
        any(function.capture for function in program.functions),
    )


def _signature(program: Program) -> list[str]:
    stateful, capturing = _flags(program)
    items = ["weights: Mapping[str, Weights]"]
    items += ["state: Mapping[str, State]"] if stateful else []
    items += [f"{base_name(item.name)}: Array" for item in program.inputs]
    types = ["Array"] * len(program.outputs)
    types += ["dict[str, State]"] * stateful + ["Captured"] * capturing
    returned = types[0] if len(types) == 1 else f"tuple[{', '.join(types)}]"
    return bracketed("def step(", items, f") -> {returned}:", 0)


def _docstring(program: Program) -> str:
    layers = sum(step.layer is not None for step in program.steps)
    return f"Run one whole {program.phase} step: {len(program.steps)} functions, {layers} layers."


def _body(program: Program, functions: dict[str, Function], loop: list[Step]) -> Iterator[str]:
    stateful, capturing = _flags(program)
    names = _program_names(program, loop)
    if stateful:
        yield "    after: dict[str, State] = {}"
    if capturing:
        yield "    captured: Captured = {}"
    for step in program.steps:
        if step not in loop:
            yield from _step(step, functions[step.function], names)
        elif step is loop[0]:
            yield from _layer_loop(step, functions[step.function], names)
    items = [names[name] for name in program.outputs]
    items += ["after"] * stateful + ["captured"] * capturing
    yield f"    return {', '.join(items)}"


def _program_names(program: Program, loop: list[Step]) -> dict[str, str]:
    """Name the edges between steps; in the loop a result takes the name of what it replaces."""
    names = {item.name: base_name(item.name) for item in program.inputs}
    taken = {
        "weights",
        "state",
        "after",
        "captured",
        "function",
        "edges",
        "edge",
        "key",
        "name",
        "step",
        "index",
    }
    taken |= {function.name for function in program.functions}
    for step in program.steps:
        if step in loop and step is not loop[0]:
            previous = loop[loop.index(step) - 1]
            handed = _handed_on(previous, step) or ()
            for index, result in enumerate(handed):
                if result is not None:
                    names[step.results[result]] = names[step.arguments[index]]
            continue
        for name in step.results:
            base = base_name(name)
            names[name] = f"{base}_" if base in taken else base
        if loop and step is loop[0]:
            for index, result in enumerate(_handed_on(step, loop[1]) or ()):
                if result is not None:
                    names[step.results[result]] = names[step.arguments[index]]
    return names


def _step(step: Step, function: Function, names: dict[str, str]) -> Iterator[str]:
    key = string(step_name(step))
    yield f"    with named_scope({key}):"
    constants = [(scalar_name(name), value) for name, value in step.scalars.items()]
    arguments = [names[name] for name in step.arguments]
    targets = [names[name] for name in step.results]
    head = _call_head(targets, function, step.function, key)
    items = [f"weights[{key}]", *([f"state[{key}]"] if function.state else []), *arguments]
    yield from bracketed(head, [*items, *constants], ")", 8)
    if not function.capture:
        return
    prefix = "" if step.layer is None else f"{step_name(step)}."
    yield "    for key, edge in edges.items():"
    yield (
        f'        captured[f"{prefix}{{key}}"] = edge' if prefix else "        captured[key] = edge"
    )


def _layer_loop(step: Step, function: Function, names: dict[str, str]) -> Iterator[str]:
    yield "    for index, function in enumerate(LAYERS):"
    yield '        name = f"layer.{index}"'
    yield "        with named_scope(name):"
    arguments = [names[name] for name in step.arguments]
    head = _call_head([names[name] for name in step.results], function, "function", "name")
    items = ["weights[name]", *(["state[name]"] if function.state else []), *arguments]
    items += ["**SCALARS[index]"] if function.scalars else []
    yield from bracketed(head, items, ")", 12)
    if function.capture:
        yield "        for key, edge in edges.items():"
        yield '            captured[f"{name}.{key}"] = edge'


def _call_head(targets: list[str], function: Function, callee: str, key: str) -> str:
    items = [*targets, *([f"after[{key}]"] if function.state else [])]
    items += ["edges"] if function.capture else []
    return f"{', '.join(items)} = {callee}("
