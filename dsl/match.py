"""The circuit for a model: by the HF class or GGUF architecture that its own config names."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from cke.dsl import syntax
from cke.dsl.circuit import Circuit
from cke.dsl.evaluate import EvaluationError, Model, Value, evaluate
from cke.dsl.library import library, library_circuits
from cke.dsl.model import OpenModel
from cke.dsl.parse import parse
from cke.errors import CkeError, Diagnostic, Note, Span
from cke.schemas.model_source import ModelSource


class Family(msgspec.Struct, frozen=True):
    """A circuit's name, and where the model's own config lies when it is wrapped."""

    circuit: str
    under: str | None


def find_family(source: ModelSource) -> Family:
    """Return the library's circuit for a model; CkeError lists what is known when there is none."""
    names = family_names(source)
    rows = [(name, row) for name, match in _library_matches() for row in match]
    found = {
        name: row.under
        for name, row in rows
        if row.format == source.format and _fits(row, names, source)
    }
    if len(found) == 1:
        return Family(*next(iter(found.items())))
    if found:
        listed = ", ".join(f"`{name}`" for name in found)
        message = f"expected one circuit for `{_shown(names)}`, got {listed}"
        raise CkeError(Diagnostic(code="CKE312", message=message, file=source.name))
    raise _unknown_family(source, names, rows)


def matching_row(circuit: Circuit, source: ModelSource) -> syntax.MatchRow | None:
    """Return the row of a circuit's `match` that fits a model, or None."""
    names = family_names(source)
    rows = (row for row in circuit.match if row.format == source.format)
    return next((row for row in rows if _fits(row, names, source)), None)


def family_names(source: ModelSource) -> tuple[str, ...]:
    """Return what the model calls its family; empty when it does not say."""
    if source.format == "gguf":
        name = source.config.get("general.architecture")
        return (name,) if isinstance(name, str) else ()
    names = source.config.get("architectures")
    if not isinstance(names, list):
        return ()
    return tuple(name for name in names if isinstance(name, str))


def _fits(row: syntax.MatchRow, names: tuple[str, ...], source: ModelSource) -> bool:
    if not any(item.name in names for item in row.names):
        return False
    if row.condition is None:
        return True
    try:
        return evaluate(row.condition, _MatchScope(OpenModel(source, row.under))) is True
    except EvaluationError as error:
        raise CkeError(error.diagnostic) from None


class _MatchScope:
    """A condition of `match` reads the model's config and nothing else."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.maps: Mapping[str, syntax.MapTable] = {}

    def name(self, name: str, span: Span) -> Value:
        """Return `source`; any other name is an error."""
        if name == "source":
            return self.model.format
        message = f"`match` reads keys of `hf` and `gguf` only, got `{name}`"
        raise EvaluationError(Diagnostic(code="CKE230", message=message, span=span))


def _library_matches() -> Iterator[tuple[str, tuple[syntax.MatchRow, ...]]]:
    for name in library_circuits():
        path = library().path(name)
        yield name, _match_rows(path, library().shown(name))


def _match_rows(path: Path, shown: str) -> tuple[syntax.MatchRow, ...]:
    file = parse(path.read_bytes(), shown, only=("match",))
    return tuple(row for item in file.items if isinstance(item, syntax.Match) for row in item.rows)


def _unknown_family(
    source: ModelSource, names: tuple[str, ...], rows: list[tuple[str, syntax.MatchRow]]
) -> CkeError:
    known = sorted(
        {item.name for _, row in rows if row.format == source.format for item in row.names}
    )
    key = "architectures" if source.format == "hf" else "general.architecture"
    got = f"got `{_shown(names)}`" if names else f"got no `{key}`"
    file = "config.json" if source.format == "hf" else source.name
    path = "$.architectures" if source.format == "hf" else key
    return CkeError(
        Diagnostic(
            code="CKE311",
            message=f"no circuit of the library is for this model: {got}",
            file=file,
            path=path,
            notes=(
                Note(f"known are {', '.join(known)}"),
                Note(
                    "write a circuit with `cke new --from`, and give it with `--circuit`",
                    label="help",
                ),
            ),
        )
    )


def _shown(names: tuple[str, ...]) -> str:
    return ", ".join(names)
