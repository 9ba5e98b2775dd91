"""Points after statements: which edge or alias of the function takes which checkpoint."""

from collections.abc import Sequence

from cke.dsl import syntax
from cke.dsl.elaborate_errors import counted, error
from cke.dsl.elaborate_values import ValueWalker
from cke.dsl.elaborate_walker import Values
from cke.dsl.function_builder import Reference, Target
from cke.dsl.scope import (
    Instance,
    SlotReference,
)
from cke.errors import Note, Span
from cke.schemas.ir import Checkpoint, StateSlot

ROLES = {"k": "key", "v": "value"}
"""What the rows of a lane are called in a role; other lanes keep their names."""


class PointWalker(ValueWalker):
    """Attaches the points of statements, each once in an instance."""

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
