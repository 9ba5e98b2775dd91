"""`cke cache`: list, measure and clear what CKE keeps between runs.

Everything lies under one folder: built packages, compiled programs, crash files. All of it can be
made again, so that clearing only costs time.
"""

import shutil
from pathlib import Path

import msgspec
from cyclopts import App

from cke.cli.output import Format, Output, deliver, encode_json
from cke.errors import CkeError, Diagnostic, Note
from cke.errors.files import cache_folder

app = App(name="cache", help="List, measure and clear what CKE keeps in the cache.")


class Area(msgspec.Struct, frozen=True):
    """One folder of the cache: how many files it holds, and their size in bytes."""

    name: str
    files: int
    size: int


def areas() -> tuple[Area, ...]:
    """Every folder of the cache, by name; empty when there is no cache yet."""
    root = cache_folder()
    if not root.is_dir():
        return ()
    return tuple(_measure(path) for path in sorted(root.iterdir()) if path.is_dir())


def _measure(folder: Path) -> Area:
    sizes = [p.lstat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink()]
    return Area(folder.name, len(sizes), sum(sizes))


@app.command(name="list")
def list_(*, format: Format = "human", output: Output = None) -> None:
    """List the areas of the cache with the number of files and their size."""
    found = areas()
    deliver(
        format,
        output,
        {
            "human": lambda: _table(found),
            "json": lambda: encode_json({"folder": str(cache_folder()), "areas": found}),
        },
    )


@app.command
def size(*, format: Format = "human", output: Output = None) -> None:
    """Print the size of the whole cache."""
    total = sum(area.size for area in areas())
    deliver(
        format,
        output,
        {"human": lambda: _megabytes(total), "json": lambda: encode_json({"size": total})},
    )


@app.command
def clear(area: str | None = None) -> None:
    """Remove one area of the cache, or all of it.

    Parameters
    ----------
    area
        The name of an area, as `cke cache list` shows it; all areas when left out.
    """
    found = {item.name: item for item in areas()}
    if area is not None and area not in found:
        known = ", ".join(f"`{name}`" for name in found) or "none yet"
        raise CkeError(
            Diagnostic(
                code="CKE908",
                message=f"expected an area of the cache ({known}), got `{area}`",
                notes=(Note("`cke cache list` shows the areas", label="help"),),
            )
        )
    chosen = found.values() if area is None else [found[area]]
    for item in chosen:
        shutil.rmtree(cache_folder(item.name))
    print(f"removed {_megabytes(sum(item.size for item in chosen))} from {cache_folder()}")


def _table(found: tuple[Area, ...]) -> str:
    if not found:
        return f"{cache_folder()} is empty"
    width = max(len(area.name) for area in found)
    lines = [f"{a.name:<{width}}  {a.files:>7} files  {_megabytes(a.size):>12}" for a in found]
    return "\n".join([str(cache_folder()), *lines])


def _megabytes(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
