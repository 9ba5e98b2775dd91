"""Requests of a capture: made for the purpose, of a file of pixels, or those a trace answers."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cke.errors import CkeError, Diagnostic, MissingInputError, Note
from cke.runtime.records import digest
from cke.runtime.schedule import CaptureRequest, Pixels
from cke.runtime.trace_reader import TraceFolder, given_inputs
from cke.schemas.manifest import Manifest

TOKENS = 12


def default_request(manifest: Manifest) -> CaptureRequest:
    """Return a packet that shows what one position or one key would hide: all of use.

    It is 12 tokens of the vocabulary, or for an encoder of images two images of noise.
    """
    seed = int.from_bytes(hashlib.sha256(b"cke.xray.default").digest()[:4], "little")
    generator = np.random.default_rng(seed)
    wanted = _pixels_shape(manifest)
    if wanted is not None:
        return _of_pixels(manifest, generator.standard_normal((2, *wanted)))
    size = manifest.calls.dims.get("V", 64)
    row = generator.integers(1, max(2, size), TOKENS)
    return CaptureRequest(tokens=(tuple(int(token) for token in row),))


def pixels_request(manifest: Manifest, file: str | Path) -> CaptureRequest:
    """Return the request of a .npy file f32[B, Z, I, J]; one that does not fit is CKE717."""
    path = Path(file)
    if not path.is_file():
        raise MissingInputError(_fault(path, "expected a .npy file of pixels, got no file"))
    try:
        found: Any = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        found = None
    if not isinstance(found, np.ndarray):
        raise CkeError(_fault(path, "expected one array in the .npy format, got another file"))
    wanted = _pixels_shape(manifest)
    if wanted is None:
        name = f"{manifest.circuit}@{manifest.circuit_version}"
        raise CkeError(_fault(path, f"`{name}` takes tokens, expected no pixels"))
    if found.dtype.kind != "f" or found.ndim != 4 or found.shape[1:] != wanted or not len(found):
        sizes = ", ".join(map(str, wanted))
        got = f"{found.dtype.name}{list(found.shape)}"
        raise CkeError(_fault(path, f"expected floats [images, {sizes}], got {got}"))
    if not np.isfinite(found).all():
        raise CkeError(_fault(path, "expected finite pixels, got NaN or infinite ones"))
    return _of_pixels(manifest, found)


def recorded_request(trace: TraceFolder) -> CaptureRequest:
    """Return the request that a trace answers: its prompt, forwards, forced tokens and pixels."""
    body = trace.trace.body
    whole = [item for item in body.segments if item.phase != "decode"]
    rows: list[list[int]] = [[] for _ in whole[0].tokens]
    ends: list[int] = []
    for item in whole:
        ends.append((ends[-1] if ends else 0) + len(item.tokens[0]))
        for row, tokens, positions in zip(rows, item.tokens, item.positions, strict=True):
            row += [t for t, p in zip(tokens, positions, strict=True) if p >= 0]
    forced = tuple(
        tuple(row[0] for row in item.tokens) for item in body.segments if item.phase == "decode"
    )
    given = [trace.array(record, digest) for record in given_inputs(body)]
    return CaptureRequest(
        tokens=tuple(map(tuple, rows)),
        segments=tuple(ends) if len(ends) > 1 else (),
        forced=forced,
        first_position=max(0, min((p for p in whole[0].positions[0] if p >= 0), default=0)),
        pixels=Pixels(given[0]) if given else None,
    )


def _pixels_shape(manifest: Manifest) -> tuple[int, ...] | None:
    """Return [Z, I, J] of what the circuit is given, None when it takes tokens."""
    inputs = manifest.graph.programs[0].inputs
    found = next((item.type.shape[1:] for item in inputs if item.name == "pixels"), None)
    return None if found is None else tuple(int(size) for size in found)


def _of_pixels(manifest: Manifest, values: NDArray[Any]) -> CaptureRequest:
    """Return the request of images: one token, 0, for each row of the encoder."""
    row = (0,) * manifest.graph.dims["T"]
    return CaptureRequest(tokens=(row,) * len(values), pixels=Pixels(values))


def _fault(path: Path, message: str) -> Diagnostic:
    help = "save what the model's image processor returns as `pixel_values` with `numpy.save`"
    return Diagnostic(
        code="CKE717", file=path.name, message=message, notes=(Note(help, label="help"),)
    )
