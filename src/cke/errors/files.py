"""Files appear whole or not at all, and everything kept for later lives in one cache folder."""

import contextlib
import errno
import os
import secrets
import shutil
import stat
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
    temporary = _beside(path)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else 0)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            os.chmod(temporary, mode)
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
def folder_atomically(path: Path, *, keep: bool = False) -> Iterator[Path]:
    """Yield a temporary folder that becomes `path` at the end, or vanishes on any error.

    A folder that stands there by then is replaced: a reader sees the old one, for a moment none,
    then the new one. With `keep` it stays, and the new one vanishes: what is kept under the hash
    of its content is there for every reader from the first time on.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(path)
    temporary.mkdir()
    try:
        yield temporary
        _put_folder(temporary, path, keep)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _put_folder(new: Path, path: Path, keep: bool) -> None:
    aside: list[Path] = []
    while not _moved(new, path) and not keep:
        aside.append(_beside(path))
        with contextlib.suppress(FileNotFoundError):  # another writer has moved it
            os.rename(path, aside[-1])
    for old in aside:  # what stood there goes when the new one is in its place, not before
        if old.is_dir():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.unlink(missing_ok=True)


def _moved(new: Path, path: Path) -> bool:
    """Move a folder to a path, unless something stands there."""
    try:
        os.rename(new, path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        return False
    return True


def _beside(path: Path) -> Path:
    """Return a name that nobody has, in the folder of a path."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")
