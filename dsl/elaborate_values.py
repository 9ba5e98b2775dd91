"""Expressions of a block: operators, parts and blocks applied to edges, arithmetic on numbers."""

from collections.abc import Sequence

from cke.dsl import elaborate_expressions as static
from cke.dsl import syntax
from cke.dsl.elaborate_attributes import written
from cke.dsl.elaborate_calls import Application
from cke.dsl.elaborate_errors import error
from cke.dsl.elaborate_givens import is_operator
from cke.dsl.elaborate_walker import Values, Walker
from cke.dsl.evaluate import UNKNOWN
from cke.dsl.function_builder import Reference, Target
from cke.dsl.scope import (
    BlockPart,
    Instance,
    OperatorPart,
    Removed,
)
from cke.errors import Note, Span
from cke.kernel_registry.operators import ARITHMETIC, OPERATORS, Operator


class ValueWalker(Walker):
    """Evaluates expressions; an operator applied to edges becomes an op of the function."""

    def _results(
        self, expression: syntax.Expression, instance: Instance, targets: Sequence[Target]
    ) -> Values:
        if isinstance(expression, syntax.Call):
            return self._call(expression, instance, targets)
        return (self.value(expression, instance, targets[0]),)

    def value(self, expression: syntax.Expression, instance: Instance, target: Target) -> object:
        """Return a tensor, a slot, a removed part, or a static value."""
        match expression:
            case syntax.Literal(value=value):
                return value
            case syntax.Name(name=name, span=span):
                return self._read(name, span, instance)
            case syntax.Root(format=format):
                return format
            case syntax.ListOf(items=items):
                return [self.value(item, instance, target) for item in items]
            case syntax.Call():
                values = self._call(expression, instance, (target,))
                if len(values) != 1:
                    raise error(
                        "CKE218", expression.span, f"expected one result, got {len(values)}"
                    )
                return values[0]
            case syntax.Conditional():
                return self._choose(expression, instance, target)
            case syntax.Unary():
                return self._unary(expression, instance, target)
            case syntax.Binary():
                return self._binary(expression, instance, target)
        raise error(
            "CKE219",
            expression.span,
            "a block reads no config: bind the value and list it under `given`",
        )

    def _choose(self, expression: syntax.Conditional, instance: Instance, target: Target) -> object:
        condition = self.value(expression.condition, instance, target)
        if condition is UNKNOWN:
            self.value(expression.otherwise, instance, target)
            return self.value(expression.value, instance, target)
        chosen = expression.value if condition else expression.otherwise
        return self.value(chosen, instance, target)

    def _unary(self, expression: syntax.Unary, instance: Instance, target: Target) -> object:
        operand = self.value(expression.operand, instance, target)
        if isinstance(operand, Reference):
            return self._scaled(operand, -1.0, instance, target, expression.span)
        try:
            return static.unary(expression.operator, operand)
        except static.StaticError as problem:
            raise error("CKE220", expression.span, str(problem)) from problem

    def _binary(self, expression: syntax.Binary, instance: Instance, target: Target) -> object:
        left = self.value(expression.left, instance, target)
        right = self.value(expression.right, instance, target)
        sign = expression.operator
        if isinstance(left, Reference) and isinstance(right, Reference):
            if sign not in ARITHMETIC:
                raise error(
                    "CKE220", expression.operator_span, f"`{sign}` takes no tensors: use + - *"
                )
            operator = OPERATORS[ARITHMETIC[sign]]
            return self._apply(
                operator, operator.name, (left, right), {}, instance, (target,), expression.span
            )[0]
        if isinstance(left, Reference) or isinstance(right, Reference):
            return self._mixed(expression, left, right, instance, target)
        for side, operand in ((left, expression.left), (right, expression.right)):
            if isinstance(side, Removed):
                raise _removed(side, operand.span)
        try:
            return static.binary(sign, left, right)
        except static.StaticError as problem:
            raise error("CKE220", expression.operator_span, str(problem)) from problem

    def _mixed(
        self,
        expression: syntax.Binary,
        left: object,
        right: object,
        instance: Instance,
        target: Target,
    ) -> object:
        """Return a tensor times, over, or plus nothing but a number."""
        tensor, number = (left, right) if isinstance(left, Reference) else (right, left)
        if isinstance(number, Removed):
            raise _removed(number, expression.span)
        assert isinstance(tensor, Reference)
        sign = expression.operator
        if number is UNKNOWN:
            number = 1.0
        if isinstance(number, int | float) and not isinstance(number, bool):
            if sign == "*":
                return self._scaled(tensor, float(number), instance, target, expression.span)
            if sign == "/" and tensor is left and number != 0:
                return self._scaled(tensor, 1.0 / number, instance, target, expression.span)
            if sign in "+-" and number == 0 and (tensor is left or sign == "+"):
                name = ARITHMETIC[sign]
                return self.builder.identity(tensor, name, target)
        raise error(
            "CKE220",
            expression.operator_span,
            f"`{sign}` takes two tensors, or a tensor and a factor, got `{number}`",
        )

    def _scaled(
        self, tensor: Reference, by: float, instance: Instance, target: Target, span: Span
    ) -> object:
        operator = OPERATORS["scale"]
        return self._apply(operator, "scale", (tensor,), {"by": by}, instance, (target,), span)[0]

    def _apply(
        self,
        operator: Operator,
        label: str,
        positional: Values,
        attributes: dict[str, object],
        instance: Instance,
        targets: Sequence[Target],
        span: Span,
        part: OperatorPart | None = None,
    ) -> tuple[Reference, ...]:
        return self._applier.apply(
            Application(
                operator=operator,
                label=label,
                instance=instance,
                positional=positional,
                attributes=attributes,
                weights=part.weights if part else (None,) * len(operator.weights),
                before=part.before if part else (),
                span=span,
            ),
            targets,
        )

    def _call(
        self, expression: syntax.Call, instance: Instance, targets: Sequence[Target]
    ) -> Values:
        function = expression.function
        if isinstance(function, syntax.Index):
            _require_loop_index(function, instance)
            part = self.value(function.value, instance, targets[0])
            path = ""
        else:
            part, path = self._callee(function, instance)
        if isinstance(part, str):
            return self._call_named(part, expression, instance, targets)
        if isinstance(part, Removed):
            raise _removed(part, expression.span)
        if isinstance(part, OperatorPart):
            return self._call_operator(
                part.operator, part.name, expression, instance, targets, part
            )
        if isinstance(part, BlockPart):
            if path or not isinstance(function, syntax.Index):
                path = instance.child_path(part.name)
            values = self._positional(expression, instance, targets[0])
            return self.call_block(part, path, values, instance, expression.span)
        raise error("CKE211", function.span, f"`{source_text(function)}` cannot be called")

    def _callee(self, function: syntax.Expression, instance: Instance) -> tuple[object, str]:
        if not isinstance(function, syntax.Name):
            raise error("CKE211", function.span, "expected the name of a part or operator")
        name = function.name
        if name in instance.givens and name not in instance.parts and not is_operator(name):
            value = self._read(name, function.span, instance)
            return (_any_operator(instance, name) if value is UNKNOWN else value), name
        return self._read(name, function.span, instance) if name in instance.parts else name, name

    def _call_named(
        self,
        name: str,
        expression: syntax.Call,
        instance: Instance,
        targets: Sequence[Target],
    ) -> Values:
        if name in OPERATORS:
            return self._call_operator(OPERATORS[name], name, expression, instance, targets, None)
        if name in static.FUNCTIONS:
            values = self._positional(expression, instance, targets[0])
            try:
                return (static.call(name, values),)
            except static.StaticError as problem:
                raise error("CKE220", expression.span, str(problem)) from problem
        raise error("CKE211", expression.function.span, f"`{name}` is no part and no operator")

    def _call_operator(
        self,
        operator: Operator,
        label: str,
        expression: syntax.Call,
        instance: Instance,
        targets: Sequence[Target],
        part: OperatorPart | None,
    ) -> Values:
        named = tuple(a for a in expression.arguments if a.name is not None)
        inputs = {operand.name for operand in operator.inputs if not operand.hidden}
        attributes = written(
            operator,
            label,
            tuple(a for a in named if a.name not in inputs),
            instance,
            self.evaluate,
        )
        positional = [*self._positional(expression, instance, targets[0])]
        by_name = {a.name: a.value for a in named if a.name in inputs}
        visible = [operand.name for operand in operator.inputs if not operand.hidden]
        for name, value in by_name.items():
            place = visible.index(name or "")
            positional += [None] * (place + 1 - len(positional))
            positional[place] = self.value(value, instance, targets[0])
        own = {**(part.attributes if part else {}), **attributes}
        if self._nominal and UNKNOWN in positional:
            positional = [None if value is UNKNOWN else value for value in positional]
        return self._apply(
            operator, label, tuple(positional), own, instance, targets, expression.span, part
        )

    def _positional(self, expression: syntax.Call, instance: Instance, target: Target) -> Values:
        nested = Target(target.instance, target.name, expression.span)
        return tuple(
            self.value(argument.value, instance, nested)
            for argument in expression.arguments
            if argument.name is None
        )


def _any_operator(instance: Instance, given: str) -> object:
    """Return an operator that a given may name, for a check without a config."""
    row, _ = instance.givens[given]
    names = [atom.name for atom in row.type.alternatives]
    return next((name for name in names if is_operator(name)), UNKNOWN)


def _require_loop_index(function: syntax.Index, instance: Instance) -> None:
    """Raise CKE211 for `layers[…]` of anything but the loop's own index: layers run in order."""
    name = function.index.name if isinstance(function.index, syntax.Name) else None
    value = None if name is None else instance.bound.get(name)
    if not isinstance(value, int) and value is not UNKNOWN:
        raise error(
            "CKE211",
            function.index.span,
            f"expected the index of the loop, got `{source_text(function.index)}`",
            Note("layers run in the order of their index", label="help"),
        )


def _removed(part: Removed, span: Span) -> Exception:
    return error(
        "CKE216",
        span,
        f"`{part.name}` was removed, and is read",
        Note(f"`{part.name}` has a `when` that does not hold", part.span),
        Note("read it under the same condition", label="help"),
    )


def source_text(expression: syntax.Expression) -> str:
    """Return an expression as it is written, for messages."""
    match expression:
        case syntax.Name(name=name):
            return name
        case syntax.Literal(text=text):
            return text
        case syntax.Unary(operator=sign, operand=operand):
            return f"{sign} {source_text(operand)}"
        case syntax.Binary(operator=sign, left=left, right=right):
            return f"{source_text(left)} {sign} {source_text(right)}"
        case syntax.Get(value=value, name=name):
            return f"{source_text(value)}.{name}"
        case syntax.Index(value=value, index=index):
            return f"{source_text(value)}[{source_text(index)}]"
    return "…"
