"""What walking a function keeps: its parameters, weights, slots and the conditions around it."""

from abc import ABC, abstractmethod

import msgspec

from cke.dsl import syntax
from cke.dsl.contracts import Numerics
from cke.dsl.elaborate_calls import Applier
from cke.dsl.elaborate_errors import Errors, error
from cke.dsl.elaborate_givens import read
from cke.dsl.elaborated import WeightUse
from cke.dsl.function_builder import FunctionBuilder, Reference, Target
from cke.dsl.points import Points
from cke.dsl.scope import (
    BlockPart,
    Instance,
)
from cke.errors import Span
from cke.schemas.ir import Parameter, StateSlot, TensorType

Values = tuple[object, ...]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What every function of a circuit shares."""

    format: str
    dtype: str
    numerics: Numerics
    points: Points
    errors: Errors


class Walker(ABC):
    """The function under construction, and the names that its instances see."""

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

    @abstractmethod
    def value(self, expression: syntax.Expression, instance: Instance, target: Target) -> object:
        """Return what an expression stands for."""

    @abstractmethod
    def call_block(
        self, part: BlockPart, path: str, arguments: Values, instance: Instance, span: Span
    ) -> Values:
        """Return the results of a block applied to edges."""
