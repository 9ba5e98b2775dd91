"""Representation digests of fp32 tensors: of layer outputs, and of stages with their context.

Every NaN is hashed as one; infinities and the sign of zero are kept. A digest identifies a
representation: equal digests are no claim that tensors are equal.
"""

import hashlib
import math
import struct
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from cke.artifacts.refusal import refuse_capture
from cke.artifacts.stages import LLAMA
from cke.schemas.layer_trace import (
    INTRA_DOMAIN,
    INTRA_LAYOUT,
    LAYER_DOMAIN,
    MAX_RANK,
    TAXONOMY,
)

LAYER_MAGIC = b"LIS_CHECKPOINT_DIGEST\0"
INTRA_MAGIC = b"LIS_INTRA_LAYER_CHECKPOINT_DIGEST\0"
QUIET_NAN = 0x7FC00000
MAX_IDENTIFIER = 128
MAX_ELEMENTS = 1 << 62


class StageContext(msgspec.Struct, frozen=True, kw_only=True):
    """Where a stage was observed; all of it is hashed before the elements."""

    precision_path: str
    phase: str
    step: int
    layer: int
    stage_id: str
    tensor_role: str
    token_position: int
    stage_order: int
    execution_ordinal: int
    batch: int = 0
    sequence: int = 0


def layer_digest(elements: NDArray[np.float32], shape: Sequence[int], role: str) -> str:
    """Return `sha256:<hex>` of a layer's output."""
    head = [LAYER_MAGIC, _text(LAYER_DOMAIN), _text(role)]
    return _finish(head, elements, shape)


def stage_digest(elements: NDArray[np.float32], shape: Sequence[int], context: StageContext) -> str:
    """Return `sha256:<hex>` of a stage in its context."""
    for name in (context.precision_path, context.stage_id, context.tensor_role):
        check_identifier(name)
    head = [
        INTRA_MAGIC,
        _text(INTRA_DOMAIN),
        _text(INTRA_LAYOUT),
        _number(1),
        _text(TAXONOMY),
        _text(LLAMA),
        _text(context.precision_path),
        _text(context.phase),
        _number(context.step),
        _number(context.layer),
        _text(context.stage_id),
        _text(context.tensor_role),
        *map(
            _number,
            (
                context.batch,
                context.sequence,
                context.token_position,
                context.stage_order,
                context.execution_ordinal,
            ),
        ),
    ]
    return _finish(head, elements, shape)


def check_identifier(text: str) -> None:
    """Refuse an identifier that is empty, oversized, no UTF-8, or has control characters."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        refuse_capture("an identifier of a digest is not UTF-8")
    if not 0 < size <= MAX_IDENTIFIER:
        refuse_capture(f"an identifier of a digest has 1 to {MAX_IDENTIFIER} bytes, got {size}")
    if not text.isprintable():
        refuse_capture("an identifier of a digest has control characters")


def check_shape(shape: Sequence[int], count: int) -> None:
    """Refuse a shape of rank 0 or above 4, with a zero, or whose product is not the count."""
    if not 1 <= len(shape) <= MAX_RANK:
        refuse_capture(f"a checkpoint has rank 1 to {MAX_RANK}, got {len(shape)}")
    if any(size <= 0 for size in shape):
        refuse_capture(f"a checkpoint has no empty dimension, got {list(shape)}")
    product = math.prod(shape)
    if product > MAX_ELEMENTS:
        refuse_capture("the shape of a checkpoint overflows")
    if product != count:
        refuse_capture(f"a checkpoint of shape {list(shape)} has {product} elements, got {count}")


def gather_span(
    physical: NDArray[np.float32], shape: Sequence[int], strides: Sequence[int], offset: int = 0
) -> NDArray[np.float32]:
    """Return the elements of a strided span in row-major order; strides count elements."""
    check_shape(shape, math.prod(shape))
    if len(strides) != len(shape) or any(stride <= 0 for stride in strides) or offset < 0:
        refuse_capture("a span has one positive stride for each dimension")
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if last >= physical.size:
        refuse_capture(f"a span ends at element {last} of {physical.size}")
    index = np.full(tuple(shape), offset, np.int64)
    for axis, stride in enumerate(strides):
        steps = np.arange(shape[axis]) * stride
        index = index + steps.reshape([-1 if at == axis else 1 for at in range(len(shape))])
    return np.asarray(physical.ravel()[index.ravel()], np.float32)


def canonical_elements(elements: NDArray[np.float32]) -> bytes:
    """Return fp32 little-endian bytes with every NaN the same."""
    bits = np.ascontiguousarray(elements.ravel(), "<f4").view("<u4")
    return np.where(np.isnan(elements.ravel()), np.uint32(QUIET_NAN), bits).astype("<u4").tobytes()


def _finish(head: list[bytes], elements: NDArray[np.float32], shape: Sequence[int]) -> str:
    if elements.dtype != np.float32:
        refuse_capture(f"a checkpoint is observed in fp32, got {elements.dtype}")
    check_shape(shape, elements.size)
    tail = [
        _number(len(shape)),
        *map(_number, shape),
        _text("fp32"),
        _text("little"),
        _number(elements.size),
        canonical_elements(elements),
    ]
    return "sha256:" + hashlib.sha256(b"".join([*head, *tail])).hexdigest()


def _number(value: int) -> bytes:
    return struct.pack("<Q", value)


def _text(value: str) -> bytes:
    raw = value.encode()
    return _number(len(raw)) + raw
