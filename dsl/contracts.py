"""Required contracts of ops: the rows of a circuit's numerics, merged field by field.

A later row wins. A selector is `*`, an operator, one of its results (`sdpa.scores`) or the path of
a part (`moe.router`); a row for a result speaks of that result alone.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from cke.kernel_registry.operators import Operator
from cke.schemas.ir import Contract, TensorType, Value

FLOATS = frozenset({"f32", "bf16", "f16", "f64"})
SECTIONS = tuple(field for field in Contract.__struct_fields__)
Fields = dict[str, dict[str, Value]]


class Row(msgspec.Struct, frozen=True):
    """One row: what it speaks of, and its fields by section."""

    selectors: tuple[str, ...]
    fields: Fields


class Numerics:
    """The rows of a circuit under a run dtype."""

    def __init__(self, rows: Iterable[Row], dtype: str) -> None:
        self._rows = tuple(rows)
        self._dtype = dtype
        self._merged: dict[tuple[str, tuple[str, ...]], Fields] = {}

    def weight_dtype(self, operator: Operator, paths: Sequence[str]) -> str:
        """Return the dtype in which a weight of the op is stored."""
        value = self._fields(operator, paths).get("storage", {}).get("weight", "model")
        return self._dtype if value in ("model", "storage") else str(value)

    def explicit_input(self, operator: Operator, paths: Sequence[str]) -> str | None:
        """Return the compute dtype of inputs when a row names it, None when it is their own."""
        value = self._fields(operator, paths).get("compute", {}).get("input")
        return self._dtype if value == "model" else value if value in FLOATS else None

    def contract(
        self,
        operator: Operator,
        paths: Sequence[str],
        inputs: Sequence[TensorType | None],
        weights: Sequence[TensorType | None],
    ) -> Contract:
        """Return the contract of an op with `model` and `storage` as dtypes."""
        own = {
            "input": _first_float(inputs),
            "weight": _first_float(weights),
            "output": self._dtype,
        }
        resolved: Fields = {}
        for section, fields in self._fields(operator, paths).items():
            kept = {
                name: self._resolve(section, name, value, own)
                for name, value in fields.items()
                if own.get(name, "") is not None
            }
            if kept:
                resolved[section] = kept
        return Contract(**resolved)

    def _resolve(
        self, section: str, name: str, value: Value, own: Mapping[str, str | None]
    ) -> Value:
        if value == "model":
            return self._dtype
        if value == "storage":
            return own.get(name) or self._dtype
        return value

    def _fields(self, operator: Operator, paths: Sequence[str]) -> Fields:
        key = (operator.name, tuple(paths))
        if key not in self._merged:
            self._merged[key] = self._merge(operator, paths)
        return self._merged[key]

    def _merge(self, operator: Operator, paths: Sequence[str]) -> Fields:
        whole: Fields = {}
        results: dict[str, Fields] = {}
        names = {"*", operator.name, *paths}
        for row in self._rows:
            for selector in row.selectors:
                head, _, result = selector.partition(".")
                if selector in names:
                    _update(whole, row.fields)
                elif head == operator.name and result in {r.name for r in operator.results}:
                    _update(results.setdefault(result, {}), row.fields)
        return _with_results(whole, results, [result.name for result in operator.results])


def _update(target: Fields, fields: Fields) -> None:
    for section, values in fields.items():
        target.setdefault(section, {}).update(values)


def _with_results(whole: Fields, results: dict[str, Fields], order: list[str]) -> Fields:
    """Merge rows of single results: points add up, other fields are `<result>.<field>`."""
    if not results:
        return whole
    merged = {section: dict(fields) for section, fields in whole.items()}
    points: list[Value] = []
    for name in order:
        own = results.get(name, {})
        fallback: list[Value] = whole.get("rounding", {}).get("points", [])
        named: list[Value] = own.get("rounding", {}).get("points", fallback)
        points += [point for point in named if point not in points]
        for section, fields in own.items():
            for field, value in fields.items():
                if (section, field) != ("rounding", "points"):
                    merged.setdefault(section, {})[f"{name}.{field}"] = value
    if points:
        merged.setdefault("rounding", {})["points"] = points
    return merged


def _first_float(types: Sequence[TensorType | None]) -> str | None:
    return next((t.dtype for t in types if t is not None and t.dtype in FLOATS), None)
