"""Files of a packet folder: found inside it, used once, measured before they are read.

Every size is proven by `stat` before a byte is read, and every byte by its sha256 after.
"""

import hashlib
import stat
from pathlib import Path, PurePosixPath

import msgspec

from cke.attention_packet.refusal import refuse
from cke.errors import CkeError
from cke.schemas.reading import Limits, read_bytes

MAX_JSON_BYTES = 262_144
JSON_LIMITS = Limits(
    max_bytes=MAX_JSON_BYTES, max_depth=16, max_items=1 << 16, links=False, big_integers=True
)


class LocatedFile(msgspec.Struct, frozen=True):
    """A regular file inside the folder, after links were resolved, with its size."""

    name: str
    path: Path
    size: int


class PacketFolder:
    """One folder whose files are each taken for one role."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.taken: dict[tuple[int, int], str] = {}

    def claim(self, name: str, where: str) -> LocatedFile:
        """Locate `name` and take it for the role `where`; nothing is read."""
        check_name(name, where)
        try:
            resolved = (self.root / name).resolve(strict=True)
            status = resolved.stat()
        except (OSError, RuntimeError):
            refuse(
                "CKE841", "expected a file of the packet folder, got none", file=name, path=where
            )
        if not resolved.is_relative_to(self.root):
            refuse("CKE841", "the file lies outside the packet folder", file=name, path=where)
        if not stat.S_ISREG(status.st_mode):
            refuse("CKE841", "expected a regular file", file=name, path=where)
        self._take((status.st_dev, status.st_ino), name, where)
        return LocatedFile(name, resolved, status.st_size)

    def _take(self, inode: tuple[int, int], name: str, where: str) -> None:
        if inode in self.taken:
            refuse(
                "CKE841", f"the file is also that of `{self.taken[inode]}`", file=name, path=where
            )
        self.taken[inode] = where


def check_name(name: str, where: str) -> None:
    """Refuse a name that is empty, absolute, leads upwards, or holds NUL or a backslash."""
    if not name:
        refuse("CKE841", "expected a file name, got an empty one", path=where)
    if "\0" in name or "\\" in name:
        refuse("CKE841", "expected a file name without NUL or backslash", path=where)
    if name.startswith("/"):
        refuse("CKE841", f"expected a relative path, got `{name}`", path=where)
    if ".." in PurePosixPath(name).parts:
        refuse("CKE841", f"expected a path without `..`, got `{name}`", path=where)


def check_length(file: LocatedFile, byte_count: int, where: str) -> None:
    """Refuse a file whose length is not the declared one."""
    if file.size != byte_count:
        refuse(
            "CKE842",
            f"expected {byte_count} bytes, got {file.size}",
            file=file.name,
            path=where,
        )


def read_exact(file: LocatedFile, byte_count: int, sha256: str, where: str) -> bytes:
    """Return the bytes of a file of proven length whose hash is the declared one."""
    try:
        raw = read_bytes(file.path, Limits(max_bytes=byte_count, links=False))
    except CkeError as error:
        refuse("CKE842", error.diagnostics[0].message, file=file.name, path=where)
    actual = hashlib.sha256(raw).hexdigest()
    if actual != sha256:
        refuse("CKE842", f"expected sha256 {sha256}, got {actual}", file=file.name, path=where)
    return raw
