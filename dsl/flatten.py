"""Files of one closure to a flattened `Circuit`: the oldest ancestor first, child wins by key."""

from collections.abc import Mapping
from typing import TypeVar

from cke.dsl import syntax
from cke.dsl.circuit import Circuit
from cke.dsl.merge import (
    Binds,
    Problems,
    bound_twice,
    merge_block,
    merge_config,
    merge_part_rows,
    part_names,
)
from cke.dsl.names import did_you_mean
from cke.dsl.reads import config_keys
from cke.errors import CkeError, Diagnostic, Note, Span

Defined = TypeVar(
    "Defined", syntax.Config, syntax.Numerics, syntax.MapTable, syntax.Taxonomy, syntax.Block
)


def flatten(
    files: Mapping[str, syntax.File], lineage: tuple[str, ...], used: tuple[str, ...]
) -> tuple[Circuit, Problems]:
    """Return the circuit and what is wrong with it.

    `lineage` names the circuit's file and its ancestors, oldest first; `used` names every file,
    what a file uses before the file itself.
    """
    main = files[lineage[-1]]
    head = circuit_head(main)
    if head is None:
        message = "expected a circuit, got a file without a `circuit` line"
        raise CkeError(Diagnostic(code="CKE207", message=message, file=main.name))
    problems: Problems = []
    tables = _Tables(problems)
    for name in used:
        if name not in lineage:
            tables.gather(files[name], own=False)
    for name in lineage:
        tables.gather(files[name], own=True)
    layers = _Layers(tables, problems)
    for name in lineage:
        layers.add(files[name])
    return layers.circuit(head, files, lineage), problems


def circuit_head(file: syntax.File) -> syntax.Circuit | None:
    """Return the `circuit` line of a file."""
    return next((item for item in file.items if isinstance(item, syntax.Circuit)), None)


class _Tables:
    """What files define by name: blocks, fragments, maps, numerics, taxonomies."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.fragments: dict[str, syntax.Config] = {}
        self.numerics: dict[str, syntax.Numerics] = {}
        self.maps: dict[str, syntax.MapTable] = {}
        self.taxonomies: dict[str, syntax.Taxonomy] = {}
        self.blocks: dict[str, syntax.Block] = {}

    def gather(self, file: syntax.File, own: bool) -> None:
        """Add what a file defines; `own` files may replace what used files define."""
        names: dict[tuple[str, str], Span] = {}
        for item in file.items:
            key = _definition(item)
            if key is None:
                continue
            if key in names:
                self.problems.append(
                    bound_twice(" ".join(filter(None, key)), item.span, names[key])
                )
                continue
            names[key] = item.span
            self._define(item, own)

    def givens(self) -> dict[str, syntax.Given]:
        """Return a `given` row of every name that a block takes from its surroundings."""
        return {
            name.name: row
            for block in self.blocks.values()
            for row in block.given
            for name in row.names
        }

    def config_groups(
        self, config: syntax.Config, path: tuple[str, ...] = ()
    ) -> list[tuple[syntax.ConfigRow, ...]]:
        """Return the rows of each fragment, left to right, then the section's own."""
        groups: list[tuple[syntax.ConfigRow, ...]] = []
        for parent in config.parents:
            fragment = self._fragment(self.fragments, parent, path)
            if fragment is not None:
                groups += self.config_groups(fragment, (*path, parent.name))
        return [*groups, config.rows]

    def numerics_rows(
        self, numerics: syntax.Numerics, path: tuple[str, ...] = ()
    ) -> list[syntax.NumericsRow]:
        """Return the rows of the fragments, left to right, then the section's own."""
        rows: list[syntax.NumericsRow] = []
        for parent in numerics.parents:
            fragment = self._fragment(self.numerics, parent, path)
            if fragment is not None:
                rows += self.numerics_rows(fragment, (*path, parent.name))
        return [*rows, *numerics.rows]

    def _fragment(
        self, table: dict[str, Defined], name: syntax.Identifier, path: tuple[str, ...]
    ) -> Defined | None:
        if name.name in path:
            chain = " → ".join([*path[path.index(name.name) :], name.name])
            message = f"`{name.name}` inherits from itself: {chain}"
            self.problems.append(Diagnostic(code="CKE204", message=message, span=name.span))
            return None
        if name.name not in table:
            self.problems.append(_unknown_fragment(name, table))
        return table.get(name.name)

    def _define(self, item: syntax.Item, own: bool) -> None:
        if isinstance(item, syntax.Block):
            if own:
                merge_block(self.blocks, item, self.problems)
            else:
                self._put(self.blocks, item, item.name, own)
        elif isinstance(item, syntax.Config) and item.name:
            self._put(self.fragments, item, item.name, own)
        elif isinstance(item, syntax.Numerics) and item.name:
            self._put(self.numerics, item, item.name, own)
        elif isinstance(item, syntax.MapTable):
            self._put(self.maps, item, item.name, own)
        elif isinstance(item, syntax.Taxonomy):
            self._put(self.taxonomies, item, item.name, own)

    def _put(self, table: dict[str, Defined], item: Defined, name: str, own: bool) -> None:
        if name in table and not own:
            self.problems.append(
                Diagnostic(
                    code="CKE223",
                    message=f"two used files define `{name}`",
                    span=item.span,
                    notes=(Note("the other is at", table[name].span),),
                )
            )
        table[name] = item


def _definition(item: syntax.Item) -> tuple[str, str] | None:
    """Return what must be unique in a file; None when it may stand more than once."""
    if isinstance(item, syntax.Use | syntax.PartsOf | syntax.IgnoreTensors):
        return None
    kind = {"MapTable": "map"}.get(type(item).__name__, type(item).__name__.lower())
    if isinstance(item, syntax.Circuit | syntax.Model | syntax.Match | syntax.Schedule):
        return kind, ""
    return kind, item.name or ""


def _unknown_fragment(name: syntax.Identifier, table: Mapping[str, Defined]) -> Diagnostic:
    places = {other: item.span for other, item in table.items()}
    return Diagnostic(
        code="CKE205",
        message=f"no used file defines `{name.name}`",
        span=name.span,
        notes=did_you_mean(name.name, places),
    )


class _Layers:
    """The circuit's sections, merged file by file."""

    def __init__(self, tables: _Tables, problems: Problems) -> None:
        self.tables = tables
        self.problems = problems
        self.givens = tables.givens()
        self.config: Binds = {}
        self.ignored: dict[str, Span] = {}
        self.requires: list[syntax.Require] = []
        self.schedule: syntax.Schedule | None = None
        self.schedule_rows: Binds = {}
        self.entry: syntax.Model | None = None
        self.part_rows: dict[str, tuple[syntax.PartRow, ...]] = {}
        self.numerics: list[syntax.NumericsRow] = []
        self.ignored_tensors: list[syntax.Text] = []

    def add(self, file: syntax.File) -> None:
        """Merge the sections of a file over what is there."""
        parts: dict[str, tuple[syntax.PartRow, ...]] = {}
        for item in file.items:
            if isinstance(item, syntax.Config) and item.name is None:
                self._add_config(item)
            elif isinstance(item, syntax.Schedule):
                self._add_schedule(item)
            elif isinstance(item, syntax.Model):
                self.entry = item
            elif isinstance(item, syntax.Numerics) and item.name is None:
                self.numerics += self.tables.numerics_rows(item)
            elif isinstance(item, syntax.IgnoreTensors):
                self.ignored_tensors += item.patterns
            elif isinstance(item, syntax.PartsOf):
                self._check_parts_of(item)
                name = item.block.name
                parts[name] = (*parts.get(name, ()), *item.rows)
        for name, rows in parts.items():
            self.part_rows[name] = merge_part_rows(self.part_rows.get(name, ()), rows)

    def circuit(
        self, head: syntax.Circuit, files: Mapping[str, syntax.File], lineage: tuple[str, ...]
    ) -> Circuit:
        """Return the whole."""
        self._check_entry(head)
        main = files[lineage[-1]]
        match = next((item.rows for item in main.items if isinstance(item, syntax.Match)), ())
        return Circuit(
            name=head.name,
            version=head.version,
            title=head.title or "",
            file=main.name,
            span=head.span,
            parents=tuple(_identity(files[name]) for name in reversed(lineage[:-1])),
            files=dict(files),
            sources={name: file.sha256 for name, file in files.items()},
            own_files=lineage,
            match=match,
            entry=self.entry.block.name if self.entry else "",
            entry_span=self.entry.block.span if self.entry else head.span,
            config=self.config,
            ignored=self.ignored,
            requires=tuple(self.requires),
            index=self.schedule.index.name if self.schedule else None,
            axis=self.schedule.axis.name if self.schedule else None,
            schedule_span=self.schedule.axis.span if self.schedule else None,
            schedule_rows=self.schedule_rows,
            maps=self.tables.maps,
            blocks=self.tables.blocks,
            part_rows=self.part_rows,
            numerics=tuple(self.numerics),
            taxonomies=tuple(self.tables.taxonomies.values()),
            ignored_tensors=tuple(self.ignored_tensors),
        )

    def _add_config(self, section: syntax.Config) -> None:
        for group in self.tables.config_groups(section):
            self.config = merge_config(self.config, group, self.givens, self.problems)
            for row in group:
                if isinstance(row, syntax.Ignore):
                    self.ignored.update({name.name: name.span for name in row.names})
                elif isinstance(row, syntax.Require):
                    self.requires.append(row)
        binds = (row for row in section.rows if isinstance(row, syntax.Bind | syntax.Rebind))
        for key in config_keys(row.value for row in binds):
            self.ignored.pop(key, None)

    def _add_schedule(self, section: syntax.Schedule) -> None:
        other = self.schedule
        heads = [(item.index.name, item.axis.name) for item in (other, section) if item]
        if other is not None and len(set(heads)) > 1:
            self.problems.append(
                Diagnostic(
                    code="CKE208",
                    message=f"expected `schedule {heads[0][0]} in {heads[0][1]}` as in the parent, "
                    f"got `schedule {heads[1][0]} in {heads[1][1]}`",
                    span=section.index.span,
                    notes=(Note("the parent's is at", other.span),),
                )
            )
        self.schedule = section
        inherited = {**self.config, **self.schedule_rows}
        merged = merge_config(inherited, section.rows, self.givens, self.problems)
        names = {row.name for row in section.rows} | set(self.schedule_rows)
        self.schedule_rows = {name: row for name, row in merged.items() if name in names}

    def _check_parts_of(self, item: syntax.PartsOf) -> None:
        blocks = self.tables.blocks
        if item.block.name not in blocks:
            self.problems.append(_unknown_block(item.block, blocks))
            return
        block = blocks[item.block.name]
        known: dict[str, Span | None] = {
            row.name: row.name_span for row in block.parts if isinstance(row, syntax.Part)
        }
        for row in item.rows:
            for name in part_names(row):
                if name not in known:
                    self.problems.append(
                        Diagnostic(
                            code="CKE226",
                            message=f"block `{block.name}` has no part `{name}`",
                            span=row.span,
                            notes=did_you_mean(name, known),
                        )
                    )

    def _check_entry(self, head: syntax.Circuit) -> None:
        if self.entry is None:
            self.problems.append(
                Diagnostic(
                    code="CKE224",
                    message=f"circuit `{head.name}` names no entry block",
                    span=head.span,
                    notes=(Note("add a line such as `model causal_lm`", label="help"),),
                )
            )
        elif self.entry.block.name not in self.tables.blocks:
            self.problems.append(_unknown_block(self.entry.block, self.tables.blocks))


def _unknown_block(name: syntax.Identifier, blocks: Mapping[str, syntax.Block]) -> Diagnostic:
    places = {other: block.signature for other, block in blocks.items()}
    return Diagnostic(
        code="CKE224",
        message=f"no used file defines a block `{name.name}`",
        span=name.span,
        notes=did_you_mean(name.name, places),
    )


def _identity(file: syntax.File) -> str:
    head = circuit_head(file)
    assert head is not None, file.name
    return f"{head.name}@{head.version}"
