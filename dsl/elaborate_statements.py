"""Statements and blocks: what one function is made of."""

from collections.abc import Sequence

from cke.dsl import syntax
from cke.dsl.axes import axis_names
from cke.dsl.elaborate_calls import part_paths
from cke.dsl.elaborate_errors import PoisonedError, counted, error
from cke.dsl.elaborate_givens import tensor_type
from cke.dsl.elaborate_parts import PartBuilder
from cke.dsl.elaborate_points import PointWalker
from cke.dsl.elaborate_values import source_text
from cke.dsl.elaborate_walker import Values
from cke.dsl.evaluate import UNKNOWN
from cke.dsl.function_builder import Reference, Target
from cke.dsl.scope import (
    BlockPart,
    Conditional,
    Instance,
    Poison,
)
from cke.errors import Note, Span
from cke.schemas.ir import TensorType


class FunctionWalker(PointWalker):
    """Walks blocks and collects one function."""

    def enter(self, instance: Instance) -> None:
        """Build the parts and slots of an instance."""
        parts = PartBuilder(
            instance,
            self._settings.format,
            self._settings.dtype,
            self.evaluate,
            lambda operator, where, part: self._settings.numerics.weight_dtype(
                operator, part_paths(where, part)
            ),
            self._settings.errors,
        )
        self.instances.append(instance)
        with self._settings.errors.collected(instance):
            parts.build()
        self._declared.update(parts.weights)
        self.slots += parts.slots

    def call_block(
        self, part: BlockPart, path: str, arguments: Values, instance: Instance, span: Span
    ) -> Values:
        """Return the results of a block applied to edges."""
        child = Instance(
            part.block,
            path,
            instance.environment,
            parent=instance,
            arguments=part.arguments,
            prefixes=part.prefixes,
            called_at=span,
        )
        self.enter(child)
        self._bind_parameters(child, part.name, arguments, span)
        return self.run(child)

    def _bind_parameters(self, child: Instance, label: str, arguments: Values, span: Span) -> None:
        block = child.block
        if len(arguments) != len(block.parameters):
            raise error(
                "CKE217",
                span,
                f"`{label}` takes {counted(len(block.parameters), 'operand')}, "
                f"got {len(arguments)}",
                Note(f"`{block.name}` is declared at", block.signature),
            )
        for parameter, value in zip(block.parameters, arguments, strict=True):
            expected = tensor_type(parameter.type, child, self._settings.dtype)
            if not isinstance(value, Reference):
                raise error(
                    "CKE217",
                    span,
                    f"`{label}` needs a tensor for `{parameter.name}`, got `{value}`",
                )
            self._check_argument(label, parameter, expected, value, span)
            child.bound[parameter.name] = value
            if parameter.point is not None:
                target = Target(child.path, parameter.name, parameter.span)
                self._attach(value, parameter.point, child, target, None)

    def _check_argument(
        self,
        label: str,
        parameter: syntax.Parameter,
        expected: TensorType,
        value: Reference,
        span: Span,
    ) -> None:
        if (expected.axes, expected.shape) == (value.type.axes, value.type.shape):
            return
        raise error(
            "CKE217",
            span,
            f"`{label}` takes `{parameter.name}: {_text(expected, value.type)}`, "
            f"got {_text(value.type, expected)}",
            Note(f"`{value.name}` has that type from", value.span),
        )

    def run(self, instance: Instance) -> Values:
        """Run a block's body; return what it returns."""
        results = self.statements(instance.block.body, instance)
        if results is None:
            raise PoisonedError
        for shape, value in zip(instance.block.results, results, strict=False):
            self._check_result(shape, value, instance)
        if len(results) != len(instance.block.results):
            raise error(
                "CKE217",
                instance.block.signature,
                f"`{instance.block.name}` declares "
                f"{counted(len(instance.block.results), 'result')}, got {len(results)}",
            )
        return results

    def _check_result(self, shape: syntax.Shape, value: object, instance: Instance) -> None:
        expected = axis_names(shape.axes)
        if isinstance(value, Reference) and value.type.axes == expected:
            return
        got = f"`{value}`"
        if isinstance(value, Reference):
            got = f"[{', '.join(value.type.axes)}]"
        raise error(
            "CKE217",
            shape.span,
            f"`{instance.block.name}` returns [{', '.join(expected)}], got {got}",
            *([Note("returned from", value.span)] if isinstance(value, Reference) else []),
        )

    def statements(self, body: Sequence[syntax.Statement], instance: Instance) -> Values | None:
        """Run statements in order; return what the first `return` gives, None without one."""
        returned: Values | None = None
        for statement in body:
            match statement:
                case syntax.Assign():
                    self._assign(statement, instance)
                case syntax.Return():
                    with self._settings.errors.collected(instance):
                        returned = self._return(statement, instance)
                    return returned
                case syntax.If():
                    returned = self._if(statement, instance) or returned
                    if returned is not None and not self._nominal:
                        return returned
                case syntax.For():
                    with self._settings.errors.collected(instance):
                        raise error(
                            "CKE219",
                            statement.span,
                            "`for` over layers belongs to the model's own block",
                        )
        return returned

    def _assign(self, statement: syntax.Assign, instance: Instance) -> None:
        names = [target.name for target in statement.targets]
        poisoned = True
        with self._settings.errors.collected(instance):
            targets = [Target(instance.path, t.name, t.span) for t in statement.targets]
            values = self._results(statement.value, instance, targets)
            self._check_count(statement, values)
            self._attach_all(values, statement.points, instance, targets, statement.value)
            for name, value in zip(names, values, strict=True):
                instance.bound[name] = self._conditional(value)
            poisoned = False
        if poisoned:
            instance.bound.update((name, Poison()) for name in names)

    def _conditional(self, value: object) -> object:
        return Conditional(value, self._conditions) if self._conditions else value

    def _check_count(self, statement: syntax.Assign, values: Values) -> None:
        if len(values) != len(statement.targets):
            raise error(
                "CKE218",
                statement.value.span,
                f"expected {counted(len(statement.targets), 'result')}, got {len(values)}",
            )

    def _return(self, statement: syntax.Return, instance: Instance) -> Values:
        targets = [Target(instance.path, "return", value.span) for value in statement.values]
        if len(statement.values) == 1:
            values = self._results(statement.values[0], instance, targets)
        else:
            values = tuple(
                self.value(value, instance, target)
                for value, target in zip(statement.values, targets, strict=True)
            )
        self._attach_all(values, statement.points, instance, targets, statement.values[0])
        return values

    def _if(self, statement: syntax.If, instance: Instance) -> Values | None:
        branches = [(branch.condition, branch.body) for branch in statement.branches]
        for condition, body in branches:
            with self._settings.errors.collected(instance):
                value = self.evaluate(condition, instance)
                if value is UNKNOWN:
                    return self._both(statement, instance)
                if value:
                    return self.statements(body, instance)
        if statement.otherwise is not None:
            return self.statements(statement.otherwise, instance)
        for _, body in branches:
            self._skip(body, instance)
        return None

    def _both(self, statement: syntax.If, instance: Instance) -> Values | None:
        """Check every branch; a name bound in all of them is bound, else under its condition."""
        outer, before = self._conditions, dict(instance.bound)
        bodies = [(source_text(b.condition), b.body) for b in statement.branches]
        if statement.otherwise is not None:
            bodies.append((f"not {bodies[-1][0]}", statement.otherwise))
        returned: Values | None = None
        ends: list[dict[str, object]] = []
        for text, body in bodies:
            instance.bound = dict(before)
            self._conditions = (*outer, text)
            returned = self.statements(body, instance) or returned
            ends.append(instance.bound)
        self._conditions = outer
        instance.bound = _merged(before, ends, total=statement.otherwise is not None)
        return returned


def _text(type_: TensorType, other: TensorType) -> str:
    """Return the axes, with their sizes when the axes alone do not tell the two types apart."""
    if type_.axes != other.axes:
        return f"[{', '.join(type_.axes)}]"
    parts = (
        axis if axis == size else f"{axis}={size}"
        for axis, size in zip(type_.axes, type_.shape, strict=True)
    )
    return f"[{', '.join(parts)}]"


def _merged(
    before: dict[str, object], ends: list[dict[str, object]], total: bool
) -> dict[str, object]:
    """Return the names after branches: those bound in every one, else with their condition."""
    merged = dict(before)
    for name in dict.fromkeys(name for end in ends for name in end):
        found = [end[name] for end in ends if name in end]
        changed = [value for value in found if value is not before.get(name)]
        if not changed:
            continue
        plain = [v.value if isinstance(v, Conditional) else v for v in changed]
        if name in before or (total and len(found) == len(ends)):
            merged[name] = plain[-1]
        else:
            merged[name] = changed[-1]
    return merged
