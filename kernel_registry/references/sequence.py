"""Float64 definitions of depthwise_conv and ssd_scan."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from cke.kernel_registry.references.types import F64, I32, Slot


def depthwise_conv(
    slot: Slot | None,
    x: F64,
    positions: I32,
    weight: F64,
    bias: F64 | None,
    *,
    lanes: Sequence[str] = ("x",),
) -> tuple[Any, ...]:
    """The new slot, and `y[t] = sum_j weight[:, j] · x[t - (J - 1) + j] + bias` per channel.

    Rows at position -1 are skipped: neither read by later rows nor kept in the slot. Their own
    results are those of a row of zeros after the rows before.
    """
    width = weight.shape[1]
    batch, length, channels = x.shape
    past = np.zeros((batch, width - 1, channels)) if slot is None else slot[lanes[0]]
    kept, y = np.empty_like(past), np.empty_like(x)
    for b in range(batch):
        history = list(past[b])
        for t in range(length):
            is_row = positions[b, t] >= 0
            window = np.stack([*history, x[b, t] if is_row else np.zeros(channels)])
            y[b, t] = np.sum(window * weight.T, axis=0)
            history = list(window[1:]) if is_row else history
        kept[b] = np.stack(history) if width > 1 else past[b]
    return {lanes[0]: kept}, y if bias is None else y + bias


def ssd_scan(
    slot: Slot | None,
    x: F64,
    dt: F64,
    a_log: F64,
    b: F64,
    c: F64,
    d: F64,
    positions: I32,
    *,
    groups: int = 1,
    lanes: Sequence[str] = ("h",),
) -> tuple[Any, ...]:
    """The new slot, and y [B, T, N, P] of the scan `h ← exp(-exp(a_log)·dt)·h + dt·x⊗b`.

    `y = h·c + d·x` per head; heads of one group share b and c. Rows at position -1 leave h.
    """
    batch, length, heads = dt.shape
    u = x.reshape(batch, length, heads, -1)
    repeat = heads // groups
    keys = np.repeat(b.reshape(batch, length, groups, -1), repeat, axis=2)
    reads = np.repeat(c.reshape(batch, length, groups, -1), repeat, axis=2)
    h = (
        np.zeros((batch, heads, u.shape[-1], keys.shape[-1]))
        if slot is None
        else np.array(slot[lanes[0]])
    )
    decay = np.exp(-np.exp(a_log) * dt)
    y = np.empty_like(u)
    for t in range(length):
        gain = (dt[:, t, :, None] * u[:, t])[..., None] * keys[:, t, :, None, :]
        stepped = decay[:, t, :, None, None] * h + gain
        h = np.where((positions[:, t] >= 0)[:, None, None, None], stepped, h)
        y[:, t] = np.einsum("bnps,bns->bnp", h, reads[:, t]) + d[:, None] * u[:, t]
    return {lanes[0]: h}, y
