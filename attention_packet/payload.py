"""The payload files, opened only after every description of them was proven."""

import msgspec
import numpy as np

from cke.attention_packet.bits import Bits, Float32, count_nonfinite, native_bits, promote
from cke.attention_packet.files import PacketFolder, check_length, read_exact
from cke.schemas.attention_packet import NonfiniteCounts, RowConsistency, TensorEntry


class NativeTensor(msgspec.Struct, frozen=True):
    """One payload: its bytes as they are on disk, and their bits without batch, [head, T, D]."""

    raw: bytes
    bits: Bits
    dtype: str

    def count_nonfinite(self) -> NonfiniteCounts:
        """NaN and infinities among the native values."""
        return count_nonfinite(self.bits, self.dtype)

    def token(self) -> Float32:
        """The values of a one-token tensor as f32[head, D]."""
        return promote(self.bits[:, 0], self.dtype)


def read_payloads(folder: PacketFolder, entries: dict[str, TensorEntry]) -> dict[str, NativeTensor]:
    """Locate all files and prove all lengths, then read; each hash is proven before its decode."""
    files = {
        name: folder.claim(entry.file, f"$.tensors.{name}.file") for name, entry in entries.items()
    }
    for name, entry in entries.items():
        check_length(files[name], entry.byte_count, f"$.tensors.{name}.byteCount")
    tensors = {}
    for name, entry in entries.items():
        raw = read_exact(files[name], entry.byte_count, entry.sha256, f"$.tensors.{name}.sha256")
        tensors[name] = decode(raw, entry)
    return tensors


def decode(raw: bytes, entry: TensorEntry) -> NativeTensor:
    """The tensor of proven bytes."""
    return NativeTensor(raw, native_bits(raw, entry.dtype, entry.shape)[0], entry.dtype)


def compare_last_row(stored: NativeTensor, incoming: NativeTensor) -> RowConsistency:
    """Count the native elements in which the last stored row is not the incoming row."""
    last, row = stored.bits[:, -1], incoming.bits[:, 0]
    return RowConsistency(
        mismatched_native_elements=int(np.count_nonzero(last != row)),
        compared_native_elements=int(row.size),
    )
