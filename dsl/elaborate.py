"""Elaboration of a circuit: under a model's config, or without one for `cke check`.

`elaborate` gives functions of ops with every shape, contract and checkpoint settled;
`check_blocks` walks the same code with unknown config values and reports what no config can mend.
"""

from collections.abc import Mapping, Sequence

import msgspec

from cke.dsl import syntax
from cke.dsl.circuit import Circuit
from cke.dsl.config import BoundConfig, bind_config
from cke.dsl.contracts import Numerics, Row
from cke.dsl.elaborate_errors import Errors
from cke.dsl.elaborate_givens import tensor_type
from cke.dsl.elaborate_program import ProgramWalker, Rows
from cke.dsl.elaborate_statements import FunctionWalker
from cke.dsl.elaborate_walker import Settings
from cke.dsl.elaborated import Elaboration
from cke.dsl.function_builder import Reference
from cke.dsl.match import matching_row
from cke.dsl.points import Points
from cke.dsl.reads import read_names
from cke.dsl.scope import NOMINAL, Environment, Instance, Supplied
from cke.errors import CkeError, Diagnostic
from cke.schemas.ir import TensorType, Value
from cke.schemas.model_source import ModelSource

RUNTIME = {
    "positions": TensorType(axes=("B", "T"), shape=("B", "T"), dtype="i32"),
    "valid": TensorType(axes=("B", "T"), shape=("B", "T"), dtype="bool"),
}
"""Tensors that the session supplies, where the number of positions is not fixed by the config."""


class ElaborationErrors(CkeError):
    """Shapes, points or values that do not fit."""


def elaborate(
    circuit: Circuit, source: ModelSource, dtype: str, names: str | None = None
) -> tuple[Elaboration, dict[str, int]]:
    """Return the elaboration of a circuit under a model's config, and the sizes of its dims.

    Weights carry the sources of the format `names`, by default that of the model.
    """
    row = matching_row(circuit, source)
    config = bind_config(circuit, source, row.under if row else None)
    environment = _environment(circuit, config.dims, _supplied(circuit, config), nominal=False)
    rows = _rows(circuit, config)
    settings = _settings(circuit, names or source.format, dtype)
    elaboration = _walk(circuit, environment, settings, rows)
    if settings.errors.found:
        raise ElaborationErrors(_with_source(circuit, settings.errors.found))
    return elaboration, dict(config.dims)


def check_blocks(circuit: Circuit) -> list[Diagnostic]:
    """Return what is wrong with the circuit's blocks whatever the config says."""
    config = bind_config(circuit, None)
    rows = _rows(circuit, config) or [{}]
    dims = dict.fromkeys(_dims(circuit), NOMINAL)
    environment = _environment(circuit, dims, _supplied(circuit, config), nominal=True)
    found: list[Diagnostic] = []
    for format in ("hf", "gguf"):
        settings = _settings(circuit, format, "f32")
        _walk(circuit, environment, settings, rows)
        layer = msgspec.structs.replace(environment, row=rows[0])
        for block in _further_blocks(circuit):
            _check_block(block, layer, settings)
        found += [each for each in settings.errors.found if each not in found]
    return list(_with_source(circuit, found))


def _dims(circuit: Circuit) -> list[str]:
    return [
        name
        for name, bind in circuit.config.items()
        if [atom.name for atom in bind.type.alternatives] == ["dim"]
    ]


def _further_blocks(circuit: Circuit) -> list[syntax.Block]:
    """Return the circuit's own blocks, and those that its config or schedule may choose."""
    binds = (*circuit.config.values(), *circuit.schedule_rows.values())
    named = read_names([bind.value for bind in binds])
    return [
        block
        for block in circuit.blocks.values()
        if block.name in named or block.span.file in circuit.own_files
        if not any(isinstance(statement, syntax.For) for statement in block.body)
    ]


def _check_block(block: syntax.Block, environment: Environment, settings: Settings) -> None:
    """Walk a block by itself: one that only some config reaches is checked too."""
    walker = FunctionWalker(settings, nominal=True)
    instance = Instance(block, "", environment)
    with settings.errors.collected(instance):
        for parameter in block.parameters:
            type_ = tensor_type(parameter.type, instance, settings.dtype)
            instance.bound[parameter.name] = Reference(parameter.name, type_, parameter.span)
            walker.builder.reserve(parameter.name)
        walker.enter(instance)
        walker.run(instance)


def _walk(
    circuit: Circuit, environment: Environment, settings: Settings, rows: Rows
) -> Elaboration:
    return ProgramWalker(circuit.blocks[circuit.entry], environment, settings, rows).walk()


def _settings(circuit: Circuit, format: str, dtype: str) -> Settings:
    return Settings(
        format=format,
        dtype=dtype,
        numerics=Numerics(map(_row, circuit.numerics), dtype),
        points=Points(circuit.taxonomies),
        errors=Errors(),
    )


def _environment(
    circuit: Circuit, dims: Mapping[str, int], config: Mapping[str, Supplied], nominal: bool
) -> Environment:
    sources = {
        name: tuple(row for row in rows if isinstance(row, syntax.Sources))
        for name, rows in circuit.part_rows.items()
    }
    return Environment(
        blocks=circuit.blocks,
        sources=sources,
        dims=dims,
        config=config,
        row={},
        inputs={} if "T" in dims else RUNTIME,
        nominal=nominal,
    )


def _supplied(circuit: Circuit, config: BoundConfig) -> dict[str, Supplied]:
    return {
        name: Supplied(value, circuit.config[name].span) for name, value in config.values.items()
    }


def _rows(circuit: Circuit, config: BoundConfig) -> Sequence[Mapping[str, Supplied]]:
    return [
        {name: Supplied(value, circuit.schedule_rows[name].span) for name, value in row.items()}
        for row in config.rows
    ]


def _row(row: syntax.NumericsRow) -> Row:
    fields = {
        term.section: {a.name or "": _plain(a.value) for a in term.arguments} for term in row.terms
    }
    return Row(tuple(selector.value for selector in row.selectors), fields)


def _plain(expression: syntax.Expression) -> Value:
    """Return a numerics value: a word, a literal, or a list of them."""
    match expression:
        case syntax.Name(name=name):
            return name
        case syntax.Literal(value=value):
            return value
        case syntax.ListOf(items=items):
            return [_plain(item) for item in items]
    return None


def _with_source(circuit: Circuit, found: Sequence[Diagnostic]) -> tuple[Diagnostic, ...]:
    return tuple(
        msgspec.structs.replace(each, source=circuit.line(each.span))
        if each.span is not None and each.source is None
        else each
        for each in found
    )
