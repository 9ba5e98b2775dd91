"""Write artifacts: each validated as a reader would, then whole or not at all."""

import os
import secrets
from pathlib import Path

import msgspec

from cke.artifacts.reading import Artifact, load_decode_trace, load_layer_trace, load_run_report
from cke.artifacts.refusal import refuse_capture
from cke.errors import CkeError
from cke.errors.files import is_stream, write_atomically
from cke.schemas.decode_trace import DecodeTrace
from cke.schemas.run_report import RunReport


def new_artifact_set_id() -> str:
    """Return a fresh id from the system's random source; its failure ends the run."""
    try:
        return f"aset1:{secrets.token_bytes(16).hex()}"
    except (OSError, NotImplementedError) as error:
        refuse_capture(f"the system gives no randomness for artifact_set_id: {error}")


def encode(artifact: Artifact) -> bytes:
    """Return the JSON of an artifact after a reader's checks; a refused one is CKE861."""
    raw = msgspec.json.encode(artifact)
    document, path = msgspec.json.decode(raw), Path(artifact.kind)
    try:
        if isinstance(artifact, RunReport):
            load_run_report(document, path)
        elif isinstance(artifact, DecodeTrace):
            load_decode_trace(document, path)
        else:
            load_layer_trace(document, path)
    except CkeError as error:
        diagnostic = error.diagnostics[0]
        refuse_capture(f"the {artifact.kind} is not whole: {diagnostic.path}: {diagnostic.message}")
    return msgspec.json.format(raw, indent=2) + b"\n"


def write_artifact(artifact: Artifact, path: Path) -> None:
    """Write the JSON of an artifact."""
    write_file(path, encode(artifact))


def write_file(path: Path, data: bytes) -> None:
    """Write the bytes whole; a path that cannot be written is CKE861, and what is there stays."""
    check_target(path)
    try:
        write_atomically(path, data)
    except OSError as error:
        refuse_capture(f"`{path.name}` cannot be written: {error.strerror or error}")


def check_target(path: Path) -> None:
    """Refuse a target that cannot become a file, before the work starts."""
    if path.is_dir():
        refuse_capture(f"`{path.name}` cannot be written: it is a folder")
    if not path.parent.is_dir():
        refuse_capture(f"`{path.name}` cannot be written: its folder is not there")
    if not os.access(path if is_stream(path) else path.parent, os.W_OK):
        refuse_capture(f"`{path.name}` cannot be written: its folder is not writable")
