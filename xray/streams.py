"""Read recorded tensors tile by tile, with the digest of the whole checked at the end.

Goal: a comparison whose memory does not grow with its tensors. `Meter` counts what is held, so
that a test can say how much was asked for at a time.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from cke.runtime.trace_reader import NUMPY_DTYPES, TraceFolder, digest_differs
from cke.schemas.trace import Record
from cke.xray.tiles import Tile, flat_start, tile_shape

Array = NDArray[np.generic]
TILE = 1 << 18
"""Elements of one tile."""


class Meter:
    """Bytes that were read, and the most that one read asked for."""

    def __init__(self) -> None:
        self.total = 0
        self.largest = 0

    def count(self, size: int) -> None:
        """Count one read of `size` bytes."""
        self.total += size
        self.largest = max(self.largest, size)


METER = Meter()


class TensorStream:
    """One recorded tensor; tiles that are read in order are hashed on the way."""

    def __init__(self, folder: TraceFolder, record: Record, meter: Meter) -> None:
        file, self._offset = folder.place(record)
        self.record = record
        self.dtype = NUMPY_DTYPES[record.dtype]
        self._folder = folder
        self._meter = meter
        self._hash = hashlib.sha256()
        self._hashed = 0
        self._path = file
        self._file = os.open(file, os.O_RDONLY)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def flat(self, start: int, count: int) -> Array:
        """Return `count` elements from `start` on, in the record's own order."""
        width = self.dtype.itemsize
        raw = os.pread(self._file, count * width, self._offset + start * width)
        self._meter.count(len(raw))
        if start == self._hashed:
            self._hash.update(raw)
            self._hashed += count
        return np.frombuffer(raw, self.dtype)

    def tile(self, tile: Tile) -> Array:
        """Return a tile of the record's own axes, in its shape."""
        size = int(np.prod(tile_shape(tile)))
        return self.flat(flat_start(tile, self.record.shape), size).reshape(tile_shape(tile))

    def transposed(self, tile: Tile, order: tuple[int, ...]) -> Array:
        """Return a tile of the axes in another order: `order[i]` is the own axis of axis i."""
        mapped: Array = np.memmap(self._path, self.dtype, "r", self._offset, self.record.shape)
        piece = np.array(mapped.transpose(order)[tile])
        self._meter.count(piece.nbytes)
        return piece

    def verify(self) -> None:
        """Check the digest of the whole tensor; what was not hashed yet is read now."""
        total = int(np.prod(self.record.shape))
        while self._hashed < total:
            self.flat(self._hashed, min(TILE, total - self._hashed))
        if self._hash.hexdigest() != self.record.sha256:
            raise digest_differs(self._folder, self.record)


@contextmanager
def opened(
    folder: TraceFolder, *records: Record, meter: Meter = METER
) -> Iterator[list[TensorStream]]:
    """Yield the streams of `records`; their digests are checked when the block ends well."""
    streams: list[TensorStream] = []
    try:
        for record in records:
            streams.append(TensorStream(folder, record, meter))
        yield streams
        for stream in streams:
            stream.verify()
    finally:
        for stream in streams:
            stream.close()
