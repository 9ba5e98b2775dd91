"""The merge rules: a circuit over its parent, a fragment under its rows; child wins by key.

Each function takes what was inherited and what a file says, and returns the whole. Problems go
to the list that the caller keeps.
"""

from collections.abc import Iterable, Mapping

from cke.dsl import syntax
from cke.dsl.names import did_you_mean
from cke.errors import Diagnostic, Note, Span

Binds = dict[str, syntax.Bind]
Problems = list[Diagnostic]


def merge_config(
    inherited: Binds,
    rows: Iterable[syntax.ConfigRow],
    givens: Mapping[str, syntax.Given],
    problems: Problems,
) -> Binds:
    """Return the bindings with the rows' own over the inherited ones."""
    merged = dict(inherited)
    seen: dict[str, Span] = {}
    for row in rows:
        if not isinstance(row, syntax.Bind | syntax.Rebind):
            continue
        if row.name in seen:
            problems.append(bound_twice(row.name, row.name_span, seen[row.name]))
            continue
        seen[row.name] = row.name_span
        if isinstance(row, syntax.Bind):
            merged[row.name] = row
            continue
        type_ = _kept_type(row, inherited, givens)
        if type_ is None:
            problems.append(_rebinds_nothing(row, inherited, givens))
            continue
        merged[row.name] = syntax.Bind(
            name=row.name,
            name_span=row.name_span,
            type=type_,
            value=row.value,
            meaning=inherited[row.name].meaning if row.name in inherited else None,
            span=row.span,
        )
    return merged


def bound_twice(name: str, span: Span, first: Span) -> Diagnostic:
    """Say that one section names a thing twice."""
    return Diagnostic(
        code="CKE206",
        message=f"`{name}` is defined twice",
        span=span,
        notes=(Note("first at", first),),
    )


def _kept_type(
    row: syntax.Rebind, inherited: Binds, givens: Mapping[str, syntax.Given]
) -> syntax.Type | None:
    if row.name in inherited:
        return inherited[row.name].type
    return givens[row.name].type if row.name in givens else None


def _rebinds_nothing(
    row: syntax.Rebind, inherited: Binds, givens: Mapping[str, syntax.Given]
) -> Diagnostic:
    places = {name: bind.name_span for name, bind in inherited.items()}
    for name, given in givens.items():
        places.setdefault(name, next(item.span for item in given.names if item.name == name))
    return Diagnostic(
        code="CKE221",
        message=f"`{row.name}` rebinds nothing: no parent binds it and no block lists it under "
        "`given`",
        span=row.name_span,
        notes=did_you_mean(row.name, places),
    )


def merge_part_rows(
    inherited: tuple[syntax.PartRow, ...], own: tuple[syntax.PartRow, ...]
) -> tuple[syntax.PartRow, ...]:
    """Return own rows before inherited ones; an inherited row for the same parts goes."""
    named = {part_names(row) for row in own}
    return (*own, *(row for row in inherited if part_names(row) not in named))


def part_names(row: syntax.PartRow) -> tuple[str, ...]:
    """Return the parts that a row is for."""
    if isinstance(row, syntax.Part):
        return (row.name,)
    return tuple(item.name for item in row.names)


def merge_block(
    inherited: dict[str, syntax.Block], block: syntax.Block, problems: Problems
) -> None:
    """Put a block over an inherited one of the same name and signature."""
    other = inherited.get(block.name)
    if other is not None and _signature(other) != _signature(block):
        problems.append(
            Diagnostic(
                code="CKE222",
                message=f"block `{block.name}` replaces one of another signature",
                span=block.signature,
                notes=(
                    Note("the replaced block is at", other.signature),
                    Note("give it the same parameters and results, or another name", label="help"),
                ),
            )
        )
    inherited[block.name] = block


def _signature(block: syntax.Block) -> object:
    parameters = tuple((item.name, syntax.erase_spans(item.type)) for item in block.parameters)
    return parameters, tuple(map(syntax.erase_spans, block.results))
