"""A phase's dataflow with every edge resolved: who makes it, what it equals, where it is captured.

An edge of the whole program is a `Site`: the step's index and the edge's name in its function. A
parameter of a function is the result of an earlier step, or an input of the program.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from cke.runtime.placement import step_name
from cke.runtime.records import join_id, split_id
from cke.runtime.schedule import program_phase
from cke.schemas.call_ir import Call
from cke.schemas.call_ir import Function as CallFunction
from cke.schemas.graph_ir import Function, Op
from cke.schemas.ir import Edge, Step, TensorType
from cke.schemas.manifest import Manifest
from cke.schemas.trace import Segment


class Site(NamedTuple):
    """An edge in one step of a program."""

    step: int
    edge: str


class Point(NamedTuple):
    """A checkpoint as traces name it: its id and its role."""

    checkpoint_id: str
    role: str | None


FED_POSITIONS = Site(-1, "positions")
"""The positions that a forward was fed: an input of the program."""


class ProgramGraph:
    """One phase of a manifest, every layer unrolled by name only."""

    def __init__(self, manifest: Manifest, phase: str) -> None:
        graph = next(item for item in manifest.graph.programs if item.phase == phase)
        calls = next(item for item in manifest.calls.programs if item.phase == phase)
        self.phase = phase
        self.dims = manifest.graph.dims
        self.inputs = {item.name for item in graph.inputs}
        self.steps: tuple[Step, ...] = graph.steps
        self.functions: dict[str, Function] = {item.name: item for item in graph.functions}
        self.call_functions: dict[str, CallFunction] = {item.name: item for item in calls.functions}
        self._results = {
            name: Site(index, self.functions[step.function].results[place])
            for index, step in enumerate(graph.steps)
            for place, name in enumerate(step.results)
        }
        self._points: dict[Point, Site] = {}
        self._shown: dict[Site, list[Point]] = {}
        for index in range(len(self.steps)):
            for site, edge in self._edges(index):
                point, origin = self.point(index, edge), self.origin(site)
                self._points.setdefault(point, origin)
                self._shown.setdefault(origin, []).append(point)

    def function(self, index: int) -> Function:
        """Return the function that a step calls."""
        return self.functions[self.steps[index].function]

    def step_key(self, index: int) -> str:
        """Return the name of a step: `layer.<L>`, or its function's."""
        return step_name(self.steps[index])

    def point(self, index: int, edge: Edge) -> Point:
        """Return the checkpoint of an edge in a step."""
        name = join_id(edge.checkpoint.name, self.steps[index].layer)
        return Point(name, edge.checkpoint.role)

    def _edges(self, index: int) -> Iterator[tuple[Site, Edge]]:
        function = self.function(index)
        for op in function.ops:
            for edge in op.results:
                yield Site(index, edge.name), edge
        for alias in function.aliases:
            yield Site(index, alias.alias_of or alias.name), alias

    def site_of(self, checkpoint_id: str, role: str | None) -> Site | None:
        """Return the edge of a checkpoint; that of an alias is the edge it equals."""
        return self._points.get(Point(checkpoint_id, role))

    def points_of(self, site: Site) -> tuple[Point, ...]:
        """Return every checkpoint that shows a value: its own, then those of what equals it."""
        return tuple(self._shown.get(self.origin(site), ()))

    def name_of(self, site: Site) -> str:
        """Return the checkpoint that a value is called by: a declared one before a derived."""
        return self.declared(site) or self.points_of(site)[0].checkpoint_id

    def declared(self, site: Site) -> str | None:
        """Return the checkpoint that a circuit declares of a value; None when it does not."""
        names = (point.checkpoint_id for point in self.points_of(site))
        return next((name for name in names if not split_id(name)[0].startswith("edge/")), None)

    def is_edge(self, step: int, name: str) -> bool:
        """Return whether a name of a step is a value, and not a weight."""
        return name not in self.steps[step].weights

    def origin(self, site: Site) -> Site:
        """Return where a value is made: parameters lead to the step that gave them."""
        function = self.function(site.step)
        for alias in function.aliases:
            if alias.name == site.edge and alias.alias_of:
                return self.origin(Site(site.step, alias.alias_of))
        for place, parameter in enumerate(function.parameters):
            if parameter.name == site.edge:
                argument = self.steps[site.step].arguments[place]
                if argument in self.inputs:
                    return Site(-1, argument)
                return self.origin(self._results[argument])
        return site

    def producer(self, site: Site) -> Op | None:
        """Return the op that makes a value, None for an input of the program."""
        site = self.origin(site)
        if site.step < 0:
            return None
        return next(
            op
            for op in self.function(site.step).ops
            if any(edge.name == site.edge for edge in op.results)
        )

    def call(self, site: Site) -> Call:
        """Return the call that makes a value; it may cover several ops."""
        site = self.origin(site)
        return next(
            call
            for call in self.call_functions[self.steps[site.step].function].calls
            if any(edge.name == site.edge for edge in call.results)
        )

    def edge(self, site: Site) -> Edge:
        """Return the edge of a value that an op makes."""
        site = self.origin(site)
        op = self.producer(site)
        assert op is not None, "an input of the program has no edge"
        return next(edge for edge in op.results if edge.name == site.edge)

    def type_of(self, site: Site) -> TensorType | None:
        """Return the type of a value that an op makes."""
        return None if self.origin(site).step < 0 else self.edge(site).type

    def ops(self) -> Iterator[tuple[int, Op]]:
        """Yield every op in execution order, with its step."""
        for index in range(len(self.steps)):
            for op in self.function(index).ops:
                yield index, op

    def looked_up(self) -> tuple[str, ...]:
        """Return the semantic names of the tables that tokens and positions are looked up in."""
        names = (
            self.steps[index].weights[weight]
            for index, op in self.ops()
            for weight in op.weights
            if op.operator == "embedding" and weight is not None
        )
        return tuple(dict.fromkeys(names))

    def order(self) -> dict[Site, int]:
        """Return the place of every value in execution order."""
        places: dict[Site, int] = {}
        for index, op in self.ops():
            for edge in op.results:
                places[Site(index, edge.name)] = len(places)
        return places


def graph_of(graphs: Mapping[str, ProgramGraph], segment: Segment) -> ProgramGraph:
    """Return the graph of the phase that runs a forward: decode takes those of one column."""
    return graphs.get(program_phase(segment)) or next(iter(graphs.values()))
