"""The picture of a run, on stderr: circuit, code, kernels, numbers, speed."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from cke.schemas.manifest import Manifest

if TYPE_CHECKING:
    from cke.cli.run import RunReport


def show(report: "RunReport", manifest: Manifest, console: Console | None = None) -> None:
    """Print what happened: from the circuit to the last token."""
    target = console or Console(stderr=True, highlight=False)
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="bold cyan", no_wrap=True)
    rows.add_column()
    for name, value in _rows(report, manifest):
        rows.add_row(name, value)
    title = Text.assemble((report.circuit, "bold"), " on ", (Path(report.model).name, "bold"))
    target.print(Panel(rows, title=title, border_style="dim", expand=False))


def _rows(report: "RunReport", manifest: Manifest) -> list[tuple[str, str]]:
    counts = report.counts
    kinds = counts["functions"]
    return [
        ("circuit", f"{manifest.calls.title or manifest.circuit} ({manifest.calls.file})"),
        ("sizes", " · ".join(f"{name} {size}" for name, size in manifest.calls.dims.items())),
        (
            "graph",
            f"{counts['ops']:,} ops in {counts['layers']} layers, "
            f"{counts['checkpoints']:,} checkpoints, every edge named",
        ),
        (
            "code",
            f"{kinds} functions, {counts['calls']:,} calls a step of {counts['kernels']} kernels",
        ),
        ("kernels", ", ".join(report.kernels)),
        (
            "memory",
            f"weights {_megabytes(report.weight_bytes)} in {report.dtype}, "
            f"state {_megabytes(report.state_bytes)}",
        ),
        ("driver", f"{report.driver}, bits {report.settings['bits']}"),
        ("load", _seconds(report, "build", "weights")),
        (
            "prompt",
            f"{len(report.prompt_tokens)} tokens, first answer after "
            f"{report.seconds['first_token']:.2f} s, compilation included",
        ),
        ("answer", _answer(report)),
    ]


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


def _seconds(report: "RunReport", *parts: str) -> str:
    return ", ".join(f"{part} {report.seconds[part]:.2f} s" for part in parts)


def _answer(report: "RunReport") -> str:
    rate = report.rates["decode"]
    speed = f"{rate:.1f} tokens/s" if rate else "too few for a rate"
    ending = ", ended by the model" if report.stopped else ""
    return f"{len(report.tokens)} tokens, {speed}{ending}"
