"""A circuit with everything it inherits and uses, flattened; every row keeps its own span.

Goal: what `instantiate` walks, on one screen. Non-goal: logic; the file holds none.
"""

import msgspec

from cke.dsl import syntax
from cke.errors import Span


class Circuit(msgspec.Struct, frozen=True, kw_only=True):
    """One architecture, merged over `from` and `use`.

    `parents` are `name@version`, nearest first. `sources` maps each file to the sha256 of its
    bytes, `files` to its syntax tree, in the order in which they were read. `config` and
    `schedule_rows` hold one binding per name with the type of the oldest ancestor that a rebind
    kept. `part_rows` maps a block to the rows of `parts of`, the circuit's own before inherited
    ones. `numerics` rows win from the last to the first, field by field. `own_files` are the
    files of the circuit and its parents, without what they use.
    """

    name: str
    version: int
    title: str
    file: str
    span: Span
    parents: tuple[str, ...]
    files: dict[str, syntax.File]
    sources: dict[str, str]
    own_files: tuple[str, ...]
    match: tuple[syntax.MatchRow, ...]
    entry: str
    entry_span: Span
    config: dict[str, syntax.Bind]
    ignored: dict[str, Span]
    requires: tuple[syntax.Require, ...]
    index: str | None
    axis: str | None
    schedule_span: Span | None
    schedule_rows: dict[str, syntax.Bind]
    maps: dict[str, syntax.MapTable]
    blocks: dict[str, syntax.Block]
    part_rows: dict[str, tuple[syntax.PartRow, ...]]
    numerics: tuple[syntax.NumericsRow, ...]
    taxonomies: tuple[syntax.Taxonomy, ...]
    ignored_tensors: tuple[syntax.Text, ...]

    def line(self, span: Span) -> str:
        """Return the source line at a span."""
        file = self.files.get(span.file)
        return file.line(span.line) if file else ""
