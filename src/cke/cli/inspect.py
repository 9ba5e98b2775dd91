"""`cke inspect`: a run report, or the perf lines of a run's stderr, on one screen."""

from pathlib import Path

from cke.cli.output import Format, Output, choose, deliver, encode_json


def inspect(file: Path, /, *, format: Format = "human", output: Output = None) -> int:
    """Show a run report, or the perf lines of a run's stderr.

    Decode and layer traces are refused: they are read by `cke verify`.

    Parameters
    ----------
    file
        A run report, or a file with a run's stderr.
    """
    from cke.artifacts.inspect import inspect_file

    renderers = {"human": lambda: "", "json": lambda: ""}
    choose(format, renderers)
    found = inspect_file(file)
    text = {"human": lambda: found.text, "json": lambda: encode_json(found.payload)}
    deliver(format, output, text)
    return 0
