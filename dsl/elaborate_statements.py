"""Statements and expressions of a block, over one function under construction."""

from collections.abc import Sequence

import msgspec

from cke.dsl import elaborate_expressions as static
from cke.dsl import syntax
from cke.dsl.axes import axis_names
from cke.dsl.contracts import Numerics
from cke.dsl.elaborate_attributes import written
from cke.dsl.elaborate_calls import Application, Applier, part_paths
from cke.dsl.elaborate_errors import Errors, PoisonedError, counted, error
from cke.dsl.elaborate_givens import is_operator, read, tensor_type
from cke.dsl.elaborate_parts import PartBuilder
from cke.dsl.elaborated import WeightUse
from cke.dsl.evaluate import UNKNOWN
from cke.dsl.function_builder import FunctionBuilder, Reference, Target
from cke.dsl.points import Points
from cke.dsl.scope import (
    BlockPart,
    Conditional,
    Instance,
    OperatorPart,
    Poison,
    Removed,
    SlotReference,
)
from cke.errors import Note, Span
from cke.kernel_registry.operators import ARITHMETIC, OPERATORS, Operator
from cke.schemas.ir import Checkpoint, Parameter, StateSlot, TensorType

Values = tuple[object, ...]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What every function of a circuit shares."""

    format: str
    dtype: str
    numerics: Numerics
    points: Points
    errors: Errors


class FunctionWalker:
    """Walks blocks and collects one function."""

    def __init__(self, settings: Settings, nominal: bool) -> None:
        self._settings = settings
        self._nominal = nominal
        self.builder = FunctionBuilder()
        self.parameters: dict[str, Parameter] = {}
        self.weights: dict[str, WeightUse] = {}
        self.slots: list[StateSlot] = []
        self.instances: list[Instance] = []
        self._declared: dict[str, WeightUse] = {}
        self._attached: dict[tuple[str, str | None], list[tuple[Span, tuple[str, ...]]]] = {}
        self._conditions: tuple[str, ...] = ()
        self._applier = Applier(
            self.builder, settings.numerics, self._positions, self._use, nominal
        )

    # Names.

    def parameter(self, name: str, type_: TensorType, span: Span) -> Reference:
        """Return the function's parameter of that name, made at its first use."""
        if name not in self.parameters:
            self.parameters[name] = Parameter(name=name, type=type_)
            self.builder.reserve(name)
        return Reference(name, type_, span)

    def evaluate(self, expression: syntax.Expression, instance: Instance) -> object:
        """Return the value of an expression that makes no edge of a statement."""
        return self.value(expression, instance, Target(instance.path, "value", expression.span))

    def _read(self, name: str, span: Span, instance: Instance) -> object:
        return read(
            name,
            span,
            instance,
            self.evaluate,
            lambda key, type_: self.parameter(key, type_, span),
            self._conditions,
        )

    def _positions(self, name: str, instance: Instance, span: Span) -> Reference:
        type_ = instance.environment.inputs.get(name)
        if type_ is None:
            raise error("CKE213", span, f"`{name}` is not supplied: T is bound by the config")
        return self.parameter(name, type_, span)

    def _use(self, name: str) -> None:
        if name in self._declared:
            self.weights[name] = self._declared[name]

    # Blocks.

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

    # Statements.

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
        bodies = [(_source(b.condition), b.body) for b in statement.branches]
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

    def _skip(self, body: Sequence[syntax.Statement], instance: Instance) -> None:
        """Alias the points of rebindings that an `if` leaves out, such as rope on q."""
        for statement in body:
            if not isinstance(statement, syntax.Assign) or len(statement.targets) != 1:
                continue
            target = statement.targets[0]
            value = instance.bound.get(target.name)
            if not isinstance(value, Reference) or not _reads(statement.value, target.name):
                continue
            for point in statement.points:
                if self._settings.points.fits(point, instance, value.type.axes):
                    where = Target(instance.path, target.name, target.span)
                    with self._settings.errors.collected(instance):
                        self._attach(value, point, instance, where, None, alias=True)

    # Points.

    def _attach_all(
        self,
        values: Values,
        points: tuple[syntax.Point, ...],
        instance: Instance,
        targets: Sequence[Target],
        expression: syntax.Expression,
    ) -> None:
        if not points:
            return
        slot = self._appended(expression, instance)
        if slot is not None and len(points) == 1:
            self._attach_roles(values, points[0], instance, targets, expression, slot)
            return
        if len(points) != len(values):
            raise error(
                "CKE253",
                points[0].span,
                f"expected {counted(len(values), 'point')}, got {len(points)}",
            )
        for value, point, target in zip(values, points, targets, strict=True):
            if not isinstance(value, Reference):
                raise error("CKE253", point.span, f"`{value}` is no edge: it takes no point")
            self._attach(value, point, instance, target, None)

    def _appended(self, expression: syntax.Expression, instance: Instance) -> StateSlot | None:
        """Return the cache when the expression appends to one."""
        if not isinstance(expression, syntax.Call) or not expression.arguments:
            return None
        if not isinstance(expression.function, syntax.Name):
            return None
        if expression.function.name != "append":
            return None
        first = self.evaluate(expression.arguments[0].value, instance)
        return first.slot if isinstance(first, SlotReference) else None

    def _attach_roles(
        self,
        values: Values,
        point: syntax.Point,
        instance: Instance,
        targets: Sequence[Target],
        expression: syntax.Expression,
        slot: StateSlot,
    ) -> None:
        """Give the rows before and after an append their roles: new_key, stored_key and so on."""
        assert isinstance(expression, syntax.Call)
        roles = [ROLES.get(lane.name, lane.name) for lane in slot.lanes]
        rows = [self._row_before(a.value, instance) for a in expression.arguments[1:]]
        for role, value, target in zip(roles, values, targets, strict=True):
            assert isinstance(value, Reference)
            self._attach(value, point, instance, target, f"stored_{role}")
        for role, row, target in zip(roles, rows, targets, strict=True):
            if isinstance(row, Reference):
                where = Target(instance.path, f"new_{role}", target.span)
                self._attach(row, point, instance, where, f"new_{role}")

    def _row_before(self, expression: syntax.Expression, instance: Instance) -> object:
        return self.evaluate(expression, instance) if isinstance(expression, syntax.Name) else None

    def _attach(
        self,
        value: Reference,
        point: syntax.Point,
        instance: Instance,
        target: Target,
        role: str | None,
        alias: bool = False,
    ) -> None:
        new = role is not None and role.startswith("new_")
        axes = ("B", "S") if new else value.type.axes
        checkpoint = self._settings.points.checkpoint(point, instance, axes, role)
        self._check_once(point, checkpoint, instance)
        self.builder.attach(value, checkpoint, target, alias=alias or new)

    def _check_once(self, point: syntax.Point, checkpoint: Checkpoint, instance: Instance) -> None:
        """Refuse a point that the instance has already, but in branches that exclude each other."""
        known = self._attached.setdefault((checkpoint.name, checkpoint.role), [])
        here = self._conditions
        for span, there in known:
            shared = min(len(here), len(there))
            if here[:shared] == there[:shared]:
                raise error(
                    "CKE254",
                    point.span,
                    f"point `{point.name}` is attached twice in one instance of "
                    f"`{instance.block.name}`",
                    Note("first attached at", span),
                )
        known.append((point.span, here))

    # Expressions.

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
        raise error("CKE211", function.span, f"`{_source(function)}` cannot be called")

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


ROLES = {"k": "key", "v": "value"}


def _removed(part: Removed, span: Span) -> Exception:
    return error(
        "CKE216",
        span,
        f"`{part.name}` was removed, and is read",
        Note(f"`{part.name}` has a `when` that does not hold", part.span),
        Note("read it under the same condition", label="help"),
    )


def _text(type_: TensorType, other: TensorType) -> str:
    """Return the axes, with their sizes when the axes alone do not tell the two types apart."""
    if type_.axes != other.axes:
        return f"[{', '.join(type_.axes)}]"
    parts = (
        axis if axis == size else f"{axis}={size}"
        for axis, size in zip(type_.axes, type_.shape, strict=True)
    )
    return f"[{', '.join(parts)}]"


def _source(expression: syntax.Expression) -> str:
    match expression:
        case syntax.Name(name=name):
            return name
        case syntax.Literal(text=text):
            return text
        case syntax.Unary(operator=sign, operand=operand):
            return f"{sign} {_source(operand)}"
        case syntax.Binary(operator=sign, left=left, right=right):
            return f"{_source(left)} {sign} {_source(right)}"
        case syntax.Get(value=value, name=name):
            return f"{_source(value)}.{name}"
        case syntax.Index(value=value, index=index):
            return f"{_source(value)}[{_source(index)}]"
    return "…"


def _reads(expression: object, name: str) -> bool:
    """Tell whether an expression reads a name."""
    if isinstance(expression, syntax.Name):
        return expression.name == name
    if isinstance(expression, tuple):
        return any(_reads(item, name) for item in expression)
    if isinstance(expression, syntax.Node):
        fields = (getattr(expression, field) for field in expression.__struct_fields__)
        return any(_reads(field, name) for field in fields if not isinstance(field, Span))
    return False


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
