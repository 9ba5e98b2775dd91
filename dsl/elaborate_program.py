"""The model's own block as segments: what runs once, and one function per kind of layer.

A statement outside `for` belongs to a segment; the body of `for i in L` is elaborated once per
distinct row of the schedule. Goal: the work does not grow with the number of layers.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import msgspec

from cke.dsl import syntax
from cke.dsl.elaborate_givens import tensor_type
from cke.dsl.elaborate_statements import FunctionWalker
from cke.dsl.elaborate_walker import Settings
from cke.dsl.elaborated import Elaboration, Function, Step
from cke.dsl.evaluate import UNKNOWN
from cke.dsl.function_builder import Reference
from cke.dsl.scope import Environment, Instance, Supplied
from cke.errors import Span
from cke.schemas.ir import Parameter, TensorType
from cke.schemas.manifest import Given

Rows = Sequence[Mapping[str, Supplied]]


class _Value(msgspec.Struct, frozen=True):
    """An edge of the program."""

    name: str
    type: TensorType
    span: Span


class ProgramWalker:
    """Elaborates the entry block; `rows` is the schedule, one row per layer."""

    def __init__(
        self, entry: syntax.Block, environment: Environment, settings: Settings, rows: Rows
    ) -> None:
        self._entry = entry
        self._environment = environment
        self._settings = settings
        self._rows = rows
        self._values: dict[str, _Value] = {}
        self._functions: list[Function] = []
        self._kinds: dict[object, tuple[int, tuple[str, ...]]] = {}
        self._steps: list[Step] = []
        self._runtime: dict[str, Parameter] = {}
        self._numbers: dict[str, int] = {}
        self._outputs: tuple[str, ...] = ()

    def walk(self) -> Elaboration:
        """Return the elaboration; errors are collected in the settings."""
        inputs = self._entry_parameters()
        body = self._entry.body
        place = 0
        for looped, group in groupby(body, lambda s: isinstance(s, syntax.For)):
            statements = tuple(group)
            place += len(statements)
            later = body[place:]
            if not looped:
                self._segment(statements, later)
                continue
            for statement in statements:
                assert isinstance(statement, syntax.For)
                self._loop(statement, (statement, *later))
        return Elaboration(
            functions=tuple(self._functions),
            steps=tuple(self._steps),
            inputs=(*inputs, *self._runtime.values()),
            outputs=self._outputs,
        )

    def _entry_parameters(self) -> list[Parameter]:
        root = Instance(self._entry, "", self._environment)
        parameters = []
        for parameter in self._entry.parameters:
            type_ = tensor_type(parameter.type, root, self._settings.dtype)
            self._values[parameter.name] = _Value(parameter.name, type_, parameter.span)
            parameters.append(Parameter(name=parameter.name, type=type_))
        return parameters

    def _segment(
        self, statements: tuple[syntax.Statement, ...], later: tuple[syntax.Statement, ...]
    ) -> None:
        index, names = self._elaborate(statements, later, self._environment, None)
        self._step(index, names, None, {})

    def _loop(self, loop: syntax.For, later: tuple[syntax.Statement, ...]) -> None:
        by_index = _reads_index(loop.body, loop.index.name)
        count = 1 if self._environment.nominal else self._environment.dims[loop.axis.name]
        for layer in range(count):
            row = self._rows[layer] if self._rows else {}
            values = {name: supplied.value for name, supplied in row.items()}
            key = (loop.span, _frozen(values), layer if by_index else None)
            if key not in self._kinds:
                environment = msgspec.structs.replace(self._environment, row=row)
                self._kinds[key] = self._elaborate(
                    loop.body, later, environment, (loop.index.name, layer)
                )
            index, names = self._kinds[key]
            self._step(index, names, layer, values)

    def _elaborate(
        self,
        statements: tuple[syntax.Statement, ...],
        later: tuple[syntax.Statement, ...],
        environment: Environment,
        index: tuple[str, int] | None,
    ) -> tuple[int, tuple[str, ...]]:
        """Add a function; return its place and the names that its results are bound to."""
        walker = FunctionWalker(self._settings, environment.nominal)
        instance = Instance(self._entry, "", environment)
        walker.enter(instance)
        outer = {
            name: walker.parameter(name, value.type, value.span)
            for name, value in self._values.items()
        }
        instance.bound.update(outer)
        if index is not None:
            instance.bound[index[0]] = UNKNOWN if environment.nominal else index[1]
        returned = walker.statements(statements, instance)
        results = {
            name: value
            for name, value in instance.bound.items()
            if isinstance(value, Reference) and value != outer.get(name) and _read(later, name)
        }
        if returned is not None:
            results |= {
                f"return.{place}": value
                for place, value in enumerate(returned)
                if isinstance(value, Reference)
            }
        self._functions.append(self._function(walker, instance, results))
        return len(self._functions) - 1, tuple(results)

    def _function(
        self, walker: FunctionWalker, instance: Instance, results: dict[str, Reference]
    ) -> Function:
        ops, aliases = walker.builder.finish(frozenset(walker.weights))
        names = tuple(value.name for value in results.values())
        used = {name for op in ops for name in op.inputs} | {*names}
        used |= {alias.alias_of for alias in aliases}
        blocks = [each for each in walker.instances if each.parent is instance and not each.path]
        block = blocks[0].block if len(blocks) == 1 else self._entry
        return Function(
            parameters=tuple(p for p in walker.parameters.values() if p.name in used),
            weights=tuple(walker.weights.values()),
            state=tuple(walker.slots),
            ops=ops,
            results=names,
            aliases=aliases,
            givens=tuple(_givens(walker.instances)),
            block=block.name,
            span=block.signature,
        )

    def _step(
        self, index: int, names: tuple[str, ...], layer: int | None, row: dict[str, object]
    ) -> None:
        function = self._functions[index]
        arguments = tuple(self._argument(parameter) for parameter in function.parameters)
        types = _types(function)
        results = []
        for name, edge in zip(names, function.results, strict=True):
            label = self._label(name, edge, function)
            results.append(label)
            self._values[name] = _Value(label, types[edge], function.span)
        if any(name.startswith("return.") for name in names):
            self._outputs = tuple(results)
        self._steps.append(
            Step(
                function=index,
                layer=layer,
                arguments=arguments,
                results=tuple(results),
                row=row,
            )
        )

    def _argument(self, parameter: Parameter) -> str:
        if parameter.name in self._values:
            return self._values[parameter.name].name
        self._runtime[parameter.name] = parameter
        return parameter.name

    def _label(self, name: str, edge: str, function: Function) -> str:
        """Return the program's name of a result: `x.3`, or the point of what is returned."""
        if name.startswith("return."):
            edges = {e.name: e for op in function.ops for e in op.results}
            points = [e.checkpoint.point for e in function.aliases if e.alias_of == edge]
            own = edges[edge].checkpoint.point if edge in edges else None
            return own or next((p for p in points if p is not None), None) or name
        number = self._numbers.get(name, 0)
        self._numbers[name] = number + 1
        return f"{name}.{number}"


def _types(function: Function) -> dict[str, TensorType]:
    edges = {edge.name: edge.type for op in function.ops for edge in op.results}
    return {parameter.name: parameter.type for parameter in function.parameters} | edges


def _givens(instances: Sequence[Instance]) -> Iterator[Given]:
    for instance in instances:
        for name, supplied in instance.resolved.items():
            value = None if supplied.value is UNKNOWN else supplied.value
            by = "" if supplied.by is None else str(supplied.by)
            yield Given(
                instance=instance.path or instance.block.name,
                layers=(),
                name=name,
                value=value,
                supplied_by=by,
            )


def _read(node: object, name: str) -> bool:
    """Tell whether any expression of these statements reads a name."""
    if isinstance(node, syntax.Name):
        return node.name == name
    if isinstance(node, tuple):
        return any(_read(item, name) for item in node)
    if isinstance(node, syntax.Node):
        return any(_read(getattr(node, field), name) for field in node.__struct_fields__)
    return False


def _reads_index(node: object, name: str) -> bool:
    """Tell whether a body reads the index other than in `part[i]`."""
    if isinstance(node, syntax.Index):
        return _reads_index(node.value, name)
    if isinstance(node, syntax.Name):
        return node.name == name
    if isinstance(node, tuple):
        return any(_reads_index(item, name) for item in node)
    if isinstance(node, syntax.Node):
        return any(_reads_index(getattr(node, field), name) for field in node.__struct_fields__)
    return False


def _frozen(value: object) -> object:
    if isinstance(value, dict):
        return tuple((name, _frozen(item)) for name, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    return (type(value).__name__, value)
