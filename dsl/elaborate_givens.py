"""Resolution of givens and names in an instance.

A given is taken from: an argument of the call or constructor, an edge of an enclosing block, the
schedule at this index, the config, what the session supplies, its default.
"""

from collections.abc import Callable

from cke.dsl import syntax
from cke.dsl.axes import axis_names, typed
from cke.dsl.elaborate_errors import PoisonedError, error
from cke.dsl.evaluate import UNKNOWN
from cke.dsl.scope import Conditional, Instance, Poison, Static, Supplied
from cke.errors import Note, Span
from cke.kernel_registry.operators import OPERATORS, SCALINGS
from cke.schemas.ir import TensorType

DTYPES = {None: "float", "int": "i32", "bool": "bool", "float": "float"}
Evaluate = Callable[[syntax.Expression, Instance], object]
RuntimeInput = Callable[[str, TensorType], object]


def read(
    name: str,
    span: Span,
    instance: Instance,
    evaluate: Evaluate,
    runtime: RuntimeInput,
    conditions: tuple[str, ...] = (),
) -> object:
    """Return what a name stands for: an edge, part, slot, given, dim or alternative."""
    for scope in (instance.bound, instance.parts):
        if name in scope:
            return _settled(scope[name], name, span, conditions)
    if name in instance.givens:
        return given(name, span, instance, evaluate, runtime)
    size = instance.size(name) if name.isupper() or name in instance.environment.dims else None
    if size is not None:
        return UNKNOWN if instance.environment.nominal else size
    return name


def given(
    name: str, span: Span, instance: Instance, evaluate: Evaluate, runtime: RuntimeInput
) -> object:
    """Return the value of a declared given, resolved once per instance."""
    row, row_span = instance.givens[name]
    if is_tensor(row.type):
        return _tensor(name, span, row, instance, evaluate, runtime)
    if name not in instance.resolved:
        found = instance.supplied(name)
        if found is None and row.default is not None:
            found = Supplied(evaluate(row.default, instance), row_span)
        if found is None and instance.environment.nominal:
            found = Supplied(UNKNOWN, None)
        if found is None:
            raise error(
                "CKE213",
                row_span,
                f"`{name}` of block `{instance.block.name}` has no value",
                Note("bind it in the config or the schedule, or give it a default", label="help"),
            )
        check_alternative(name, found.value, row.type, found.by or span)
        instance.resolved[name] = found
    return instance.resolved[name].value


def is_tensor(type_: syntax.Type) -> bool:
    """Tell whether a declared type is that of a tensor."""
    return any(atom.shape is not None for atom in type_.alternatives)


def tensor_type(type_: syntax.Type, instance: Instance, dtype: str) -> TensorType:
    """Return the type of a parameter or tensor given in this instance."""
    atom = type_.alternatives[0]
    assert atom.shape is not None
    kind = DTYPES[atom.name]
    return typed(
        axis_names(atom.shape.axes), instance, dtype if kind == "float" else kind, atom.span
    )


def check_alternative(name: str, value: Static, type_: syntax.Type, span: Span) -> None:
    """Refuse a value that the declared type does not list."""
    if value is UNKNOWN:
        return
    names = [atom.name for atom in type_.alternatives]
    optional = any(atom.optional or atom.name == "none" for atom in type_.alternatives)
    if value is None and (optional or names == ["scaling"]):
        return
    if len(names) == 1 and names[0] in KINDS:
        if KINDS[names[0]](value):
            return
    elif value in names:
        return
    expected = " | ".join(str(each) for each in names)
    shown = "none" if value is None else value
    raise error("CKE231", span, f"`{name}` expects {expected}, got `{shown}`")


def _is_number(value: Static) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


KINDS: dict[str | None, Callable[[Static], bool]] = {
    "float": _is_number,
    "int": lambda value: _is_number(value) and value == int(value),
    "dim": lambda value: _is_number(value) and value == int(value),
    "bool": lambda value: isinstance(value, bool),
    "str": lambda value: isinstance(value, str),
    "block": lambda value: isinstance(value, str),
    "list": lambda value: isinstance(value, list | tuple),
    "table": lambda value: isinstance(value, dict),
    "scaling": lambda value: isinstance(value, dict) and value.get("kind") in SCALINGS,
}


def is_operator(name: object) -> bool:
    """Tell whether a value names an operator."""
    return isinstance(name, str) and name in OPERATORS


def _tensor(
    name: str,
    span: Span,
    row: syntax.Given,
    instance: Instance,
    evaluate: Evaluate,
    runtime: RuntimeInput,
) -> object:
    outer = instance.outer(name)
    if outer is not None:
        return _settled(outer, name, span, ())
    if name in instance.environment.inputs:
        return runtime(name, instance.environment.inputs[name])
    if row.default is not None:
        return evaluate(row.default, instance)
    raise error(
        "CKE213",
        row.span,
        f"`{name}` of block `{instance.block.name}` has no value",
        Note(
            "the session supplies `positions` and `valid`; other tensors are parameters",
            label="help",
        ),
    )


def _settled(value: object, name: str, span: Span, conditions: tuple[str, ...]) -> object:
    if isinstance(value, Poison):
        raise PoisonedError
    if isinstance(value, Conditional):
        missing = [each for each in value.conditions if each not in conditions]
        if missing:
            raise error(
                "CKE215",
                span,
                f"`{name}` is bound only if `{' and '.join(missing)}`",
                Note("read it under the same condition, or bind it in every branch", label="help"),
            )
        return value.value
    return value
