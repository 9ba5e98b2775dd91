"""The digest of a weights file, remembered under the file's stamp.

A file of gigabytes takes seconds to hash, and a trace names it each time. The cache keeps one
small file per path; a stamp (size, time of change, inode) that differs asks for a new digest.
"""

import hashlib
from pathlib import Path

import msgspec

from cke.errors.files import cache_folder, write_atomically
from cke.runtime.weights.located import Stamp

CHUNK = 1 << 22


class Known(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A digest, and the stamp of the file that had it."""

    stamp: Stamp
    sha256: str


def file_sha256(file: Path, stamp: Stamp) -> str:
    """Return the sha256 of the file, which has that stamp."""
    name = hashlib.sha256(str(file.resolve()).encode()).hexdigest()
    kept = cache_folder("digests", f"{name[:32]}.json")
    known = _known(kept)
    if known is not None and known.stamp == stamp:
        return known.sha256
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(CHUNK):
            digest.update(block)
    write_atomically(kept, msgspec.json.encode(Known(stamp, digest.hexdigest())))
    return digest.hexdigest()


def _known(kept: Path) -> Known | None:
    try:
        return msgspec.json.decode(kept.read_bytes(), type=Known)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
