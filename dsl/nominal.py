"""Config and schedule values without a model: what the circuit itself settles, else UNKNOWN."""

from collections.abc import Mapping

from cke.dsl import elaborate_expressions as static
from cke.dsl import syntax
from cke.dsl.scope import NOMINAL, UNKNOWN, Static, Supplied


class NominalValues:
    """Values of bindings by name, each evaluated once."""

    def __init__(self, bindings: Mapping[str, syntax.Bind]) -> None:
        self._bindings = bindings
        self._values: dict[str, Static] = {}

    def supplied(self) -> dict[str, Supplied]:
        """Return every binding that the circuit settles, and UNKNOWN for the others."""
        return {
            name: Supplied(self.value(name), bind.span) for name, bind in self._bindings.items()
        }

    def value(self, name: str) -> Static:
        """Return a binding's value; a name that binds nothing is an alternative."""
        bind = self._bindings.get(name)
        if bind is None:
            return UNKNOWN if name.isupper() or name == "source" else name
        if name not in self._values:
            self._values[name] = UNKNOWN
            self._values[name] = self._evaluate(bind.value)
        return self._values[name]

    def _evaluate(self, expression: syntax.Expression) -> Static:
        match expression:
            case syntax.Literal(value=value):
                return value
            case syntax.Name(name=name):
                return self.value(name)
            case syntax.Conditional(value=value, condition=condition, otherwise=otherwise):
                holds = self._evaluate(condition)
                return self._evaluate(value if holds else otherwise)
            case syntax.Unary(operator=sign, operand=operand):
                return self._try(static.unary, sign, self._evaluate(operand))
            case syntax.Binary(operator=sign, left=left, right=right):
                return self._try(
                    static.binary, sign, self._evaluate(left), self._evaluate(right)
                )
        return UNKNOWN

    def _try(self, function: object, *arguments: Static) -> Static:
        """Return the result, UNKNOWN where a real config would report the mistake."""
        try:
            return function(*arguments)  # type: ignore[operator]
        except static.StaticError:
            return UNKNOWN


def nominal_dims(bindings: Mapping[str, syntax.Bind]) -> dict[str, int]:
    """Return the same size for every dim: each division and product then fits."""
    return {
        name: NOMINAL
        for name, bind in bindings.items()
        if [atom.name for atom in bind.type.alternatives] == ["dim"]
    }
