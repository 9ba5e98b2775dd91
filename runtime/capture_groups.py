"""The captures of a step by layer, with all of their records that no run changes.

A decode step of a deep model captures a thousand small edges; whatever is the same in every
forward is worked out once.
"""

from collections.abc import Mapping

import msgspec
from jax import Array

from cke.runtime.edges import Bound, Edges
from cke.runtime.loaded_kernels import Contracts
from cke.runtime.records import WIRE_DTYPES, join_id
from cke.runtime.schedule import CaptureRequest
from cke.runtime.summaries import Axes
from cke.schemas.trace import Phase, Record, Summary

NOTHING = Summary(min=None, max=None, mean=None, l2=None, nan=0, inf=0)


class Item(msgspec.Struct, frozen=True):
    """A capture that the request asks for.

    `record` lacks segment, shape, summary and digest; `like` is the place in the group of the
    capture whose values it has by construction, its own place when there is none.
    """

    key: str
    axes: tuple[str, ...]
    record: Record
    like: int


class Group(msgspec.Struct, frozen=True):
    """The wanted captures of one layer in the order of execution.

    `distinct` are the places of those with values of their own, `axes` the axes of these by key
    without the layer, so that the layers of one kind share a summary program.
    """

    items: tuple[Item, ...]
    distinct: tuple[int, ...]
    axes: Axes


class Groups:
    """Finds the groups of a step's captures; a step is known by its phase and keys."""

    def __init__(self, edges: Edges, request: CaptureRequest, contracts: Contracts) -> None:
        self.edges = edges
        self.request = request
        self.contracts = contracts
        self._known: dict[tuple[Phase, Phase, tuple[str, ...]], tuple[Group, ...]] = {}

    def of(self, phase: Phase, segment: Phase, captured: Mapping[str, Array]) -> tuple[Group, ...]:
        """Return the groups of what the program `phase` captured in a segment's forward."""
        known = phase, segment, tuple(captured)
        if known not in self._known:
            self._known[known] = self._found(phase, segment, captured)
        return self._known[known]

    def _found(
        self, phase: Phase, segment: Phase, captured: Mapping[str, Array]
    ) -> tuple[Group, ...]:
        layers: dict[int | None, list[tuple[str, Bound]]] = {}
        for key in captured:
            bound = self.edges.bindings.get((phase, key))
            if bound is not None and self.request.wants(bound[0].checkpoint.name, bound[2]):
                layers.setdefault(bound[2], []).append((key, bound))
        groups = []
        for layer, found in layers.items():
            found.sort(key=lambda item: item[1][1])
            place = {key: index for index, (key, _) in enumerate(found)}
            items = tuple(
                Item(
                    key=key,
                    axes=bound[0].type.axes,
                    record=self._record(key, bound, phase, segment, captured[key]),
                    like=place.get(self.edges.sources.get((phase, key), key), index),
                )
                for index, (key, bound) in enumerate(found)
            )
            distinct = tuple(index for index, item in enumerate(items) if item.like == index)
            axes = tuple((_name(items[i].key, layer), items[i].axes) for i in distinct)
            groups.append(Group(items, distinct, axes))
        return tuple(groups)

    def _record(self, key: str, bound: Bound, phase: Phase, segment: Phase, array: Array) -> Record:
        binding, order, layer = bound
        made_by = binding.phase, binding.function, binding.call
        numerical, effective = self.contracts.get(made_by, (None, None))
        return Record(
            checkpoint_id=join_id(binding.checkpoint.name, layer),
            version=binding.checkpoint.version,
            role=binding.checkpoint.role,
            layer=layer,
            phase=segment,
            segment=0,
            tensor_path=None,
            dtype=WIRE_DTYPES[array.dtype.name],
            shape=(),
            axes=binding.type.axes,
            sha256=None,
            summary=NOTHING,
            kernel_id=binding.kernel_id or None,
            numerical_contract_id=numerical,
            effective_contract_id=effective,
            order=order,
            alias_of=self.edges.aliased(phase, key),
            level=self.request.level,
        )


def _name(key: str, layer: int | None) -> str:
    return key if layer is None else key.removeprefix(f"layer.{layer}.")
