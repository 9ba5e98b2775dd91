"""`cke weights`: every weight of a model with its tensor, and every tensor with its use."""

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from cke.cli.output import Format, Output, choose, deliver, encode_json
from cke.schemas.bindings import Coverage, Transform, WeightBinding
from cke.schemas.model_source import ModelSource

if TYPE_CHECKING:
    from cke.dsl.circuit import Circuit

LAYER = re.compile(r"(?<=\blayer\.)\d+|(?<=\blayers\.)\d+|(?<=\bblk\.)\d+|(?<=\bh\.)\d+")
AllowPickle = Annotated[bool, Parameter(help="Read pickled weights, with `weights_only=True`.")]


class WeightRow(msgspec.Struct, frozen=True, kw_only=True):
    """A weight: its type, its tensors here, and its names in both formats."""

    semantic: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    sources: tuple[str, ...]
    storage: tuple[str, ...]
    transforms: tuple[Transform, ...]
    tied_to: str | None
    hf: tuple[str, ...]
    gguf: tuple[str, ...]


class WeightReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `cke weights --format json` prints."""

    model: str
    format: str
    circuit: str
    circuit_version: int
    parameters: int
    weights: tuple[WeightRow, ...]
    coverage: Coverage


def weights(
    model: Path,
    /,
    *,
    circuit: str | None = None,
    all: bool = False,
    allow_pickle: AllowPickle = False,
    format: Format = "human",
    output: Output = None,
) -> None:
    """Show every weight of a model: its tensor, its transforms, its names in both formats.

    A tensor that is neither used nor ignored is an error, and so is a weight without a tensor.

    Parameters
    ----------
    model
        A model folder or a GGUF file.
    circuit
        The name of a library circuit, or the path of a circuit file; by default the family's own.
    all
        Show every layer, not one row for equal layers.
    """
    choose(format, {"human": str, "json": str, "markdown": str})
    from cke.runtime.weights import open_model

    report = weight_report(open_model(model, allow_pickle=allow_pickle), circuit)
    deliver(
        format,
        output,
        {
            "human": lambda: _human(report, all),
            "json": lambda: encode_json(report),
            "markdown": lambda: _markdown(report, all),
        },
    )


def weight_report(source: ModelSource, circuit: str | None) -> WeightReport:
    """Return the bindings of a model, complete, with both name maps."""
    from cke.codegen.passes.instantiate import instantiate
    from cke.dsl.match import find_family
    from cke.dsl.resolve import load_circuit

    loaded = load_circuit(circuit if circuit is not None else find_family(source).circuit)
    built = instantiate(loaded, source, "f32")
    names = _names(loaded, source)
    rows = tuple(_row(binding, source, names) for binding in built.bindings)
    return WeightReport(
        model=source.name,
        format=source.format,
        circuit=built.circuit,
        circuit_version=built.version,
        parameters=sum(_size(row.shape) for row in rows if row.tied_to is None),
        weights=rows,
        coverage=built.coverage,
    )


def _names(circuit: "Circuit", source: ModelSource) -> dict[str, dict[str, tuple[str, ...]]]:
    from cke.codegen.passes.bind_weights import name_map
    from cke.dsl.elaborate import elaborate

    hf, _ = elaborate(circuit, source, "f32", "hf")
    gguf, _ = elaborate(circuit, source, "f32", "gguf")
    return {"hf": name_map(hf, "hf"), "gguf": name_map(gguf, "gguf")}


def _row(
    binding: WeightBinding, source: ModelSource, names: dict[str, dict[str, tuple[str, ...]]]
) -> WeightRow:
    maps = {format: found.get(binding.semantic, ()) for format, found in names.items()}
    if binding.sources:
        maps[source.format] = binding.sources
    tensors = source.tensors or {}
    stored = sorted({tensors[key].storage for key in binding.sources})
    return WeightRow(
        semantic=binding.semantic,
        axes=binding.type.axes,
        shape=tuple(int(size) for size in binding.type.shape),
        sources=binding.sources,
        storage=tuple(stored),
        transforms=binding.transforms,
        tied_to=binding.tied_to,
        **maps,
    )


def _size(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


HEADER = ("weight", "shape", "stored", "transforms", "hf", "gguf")


def _human(report: WeightReport, all: bool) -> str:
    rows = [HEADER, *_cells(report, all)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([*lines, "", *_summary(report)])


def _markdown(report: WeightReport, all: bool) -> str:
    rows = [HEADER, ("---",) * len(HEADER), *_cells(report, all)]
    table = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([f"## Weights of {report.model}", "", *table, "", *_summary(report)])


def _cells(report: WeightReport, all: bool) -> list[tuple[str, ...]]:
    """One row per weight, or one for the layers that differ in their number only."""
    counts = Counter(_line(row, fold=not all) for row in report.weights)
    return [
        (f"{cells[0]} x{count}" if count > 1 else cells[0], *cells[1:])
        for cells, count in counts.items()
    ]


def _line(row: WeightRow, fold: bool) -> tuple[str, ...]:
    sizes = " ".join(f"{axis} {size}" for axis, size in zip(row.axes, row.shape, strict=True))
    stored = f"tied to {row.tied_to}" if row.tied_to else ", ".join(row.storage)
    keys = (_keys(row.hf), _keys(row.gguf))
    cells = (row.semantic, f"[{sizes}]", stored, _steps(row.transforms), *keys)
    return tuple(LAYER.sub("{L}", cell) for cell in cells) if fold else cells


def _steps(transforms: tuple[Transform, ...]) -> str:
    """What the transforms are for, each reason once; `--format json` has them in full."""
    return ", ".join(dict.fromkeys(step.purpose or step.kind for step in transforms))


def _keys(keys: tuple[str, ...]) -> str:
    if len(keys) > 1:
        return f"{keys[0]} … {keys[-1]} ({len(keys)})"
    return keys[0] if keys else "-"


def _summary(report: WeightReport) -> list[str]:
    tied = sum(row.tied_to is not None for row in report.weights)
    coverage = report.coverage
    lines = [
        f"{report.model} ({report.format}) by {report.circuit}@{report.circuit_version}: "
        f"{len(report.weights)} weights, {tied} of them tied, {report.parameters:,} parameters",
        f"{len(coverage.used)} tensors used, {len(coverage.ignored)} ignored, none left over",
    ]
    lines += [f"  {key}: ignored, {why}" for key, why in sorted(coverage.ignored.items())]
    return lines
