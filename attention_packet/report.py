"""The report on disk: strict JSON, written whole, and never over a file that is there."""

import contextlib
import os
import tempfile
from pathlib import Path

import msgspec

from cke.attention_packet.refusal import refuse
from cke.schemas.attention_packet import Analysis


def encode_report(analysis: Analysis) -> bytes:
    """Indented JSON; every float of a report is finite, absent ones are null."""
    return msgspec.json.format(msgspec.json.encode(analysis), indent=2) + b"\n"


def check_output(path: Path) -> None:
    """Refuse an output that exists, before any work is done."""
    if os.path.lexists(path):
        refuse("CKE845", "expected a report that does not exist yet", file=str(path))


def write_new(path: Path, data: bytes) -> None:
    """Write `data` to a new file, whole or not at all; an existing file stays as it is."""
    check_output(path)
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        refuse("CKE845", f"the report cannot be written: {error.strerror}", file=str(path))
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        os.link(temporary, path)
    except FileExistsError:
        refuse("CKE845", "expected a report that does not exist yet", file=str(path))
    except OSError as error:
        refuse("CKE845", f"the report cannot be written: {error.strerror}", file=str(path))
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
