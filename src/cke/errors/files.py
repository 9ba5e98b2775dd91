"""Files appear whole or not at all, and everything kept for later lives in one cache folder."""

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path


def cache_folder(*parts: str) -> Path:
    """The user's cache folder for CKE (`CKE_CACHE_DIR` moves it), or a folder within it."""
    chosen = os.environ.get("CKE_CACHE_DIR")
    if chosen:
        return Path(chosen).expanduser().joinpath(*parts)
    import platformdirs

    return Path(platformdirs.user_cache_dir("cke", appauthor=False)).joinpath(*parts)


def write_atomically(path: Path, data: bytes, *, mode: int | None = None) -> None:
    """Write the file whole or not at all: a temporary file beside it, fsync, rename, fsync.

    `mode` is the mode of the file; None is the usual one. A device or a pipe is written to
    as it is: a rename would put a file there instead.
    """
    if is_stream(path):
        path.write_bytes(data)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask() if mode is None else mode)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    _sync_folder(path.parent)


def is_stream(path: Path) -> bool:
    """Return whether a path leads to a device or a pipe, or to what a stream was redirected to."""
    try:
        kind = path.stat().st_mode
    except OSError:
        return False
    redirected = path.is_symlink() and path.absolute().parts[1:2] in [("dev",), ("proc",)]
    return redirected or stat.S_ISCHR(kind) or stat.S_ISBLK(kind) or stat.S_ISFIFO(kind)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def folder_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `path` at the end, or vanishes on any error.

    When `path` exists by then, it is replaced: readers see the old folder or the new one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        os.chmod(temporary, 0o777 & ~_umask())
        yield temporary
        _replace_folder(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _replace_folder(new: Path, path: Path) -> None:
    old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
    try:
        with contextlib.suppress(FileNotFoundError):
            os.replace(path, old / "folder")
        os.replace(new, path)
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
