"""Summaries and digests of captured arrays, and records made of them."""

import hashlib

import numpy as np
from numpy.typing import NDArray

from cke.schemas.trace import Phase, Record, Summary

Array = NDArray[np.generic]
RUN_TO_WIRE = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "f64": "fp64"}
"""The spelling of a run's dtype in a trace."""
WIRE_DTYPES = {
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float64": "fp64",
    "int32": "i32",
    "int64": "i64",
    "bool": "bool",
}


def digest(array: Array) -> str:
    """Return the sha256 of the array's logical bytes, little-endian, row-major."""
    little = np.ascontiguousarray(array)
    if little.dtype.byteorder == ">":
        little = little.astype(little.dtype.newbyteorder("<"))
    return hashlib.sha256(little.view(np.uint8).data if little.size else b"").hexdigest()


def summarise(array: Array, valid: NDArray[np.bool_] | None = None) -> Summary:
    """Return min, max, mean and l2 over the finite elements, with the others counted.

    `valid` broadcasts to the array and says which elements count; None is all of them.
    """
    values = np.asarray(array, dtype=np.float64)
    if valid is not None:
        values = values[np.broadcast_to(valid, values.shape)]
    finite = np.isfinite(values)
    nan = int(np.isnan(values).sum())
    kept = values if finite.all() else values[finite]
    if kept.size == 0:
        return Summary(min=None, max=None, mean=None, l2=None, nan=nan, inf=values.size - nan)
    return Summary(
        min=float(kept.min()),
        max=float(kept.max()),
        mean=float(kept.mean()),
        l2=float(np.sqrt(np.dot(kept.ravel(), kept.ravel()))),
        nan=nan,
        inf=int(values.size - nan - kept.size),
    )


def split_id(checkpoint_id: str) -> tuple[str, int | None]:
    """Return (name, layer) of `layer.<L>.<name>`, or (name, None)."""
    if not checkpoint_id.startswith("layer."):
        return checkpoint_id, None
    _, layer, name = checkpoint_id.split(".", 2)
    return name, int(layer)


def join_id(name: str, layer: int | None) -> str:
    """Return `layer.<L>.<name>`, or the name of an edge outside the layers."""
    return name if layer is None else f"layer.{layer}.{name}"


def record_of(
    array: Array,
    *,
    name: str,
    layer: int | None,
    phase: Phase,
    segment: int,
    axes: tuple[str, ...],
    role: str | None = None,
    derivation: str | None = None,
    order: int | None = None,
    kernel_id: str | None = None,
    numerical_contract_id: str | None = None,
    effective_contract_id: str | None = None,
    version: int = 1,
    alias_of: str | None = None,
) -> Record:
    """Return the record of a capture; an oracle's has no kernel and no contract of ours."""
    return Record(
        checkpoint_id=join_id(name, layer),
        version=version,
        role=role,
        layer=layer,
        phase=phase,
        segment=segment,
        tensor_path=None,
        dtype=WIRE_DTYPES[array.dtype.name],
        shape=tuple(array.shape),
        axes=axes,
        sha256=digest(array),
        summary=summarise(array),
        derivation=derivation,
        order=order,
        kernel_id=kernel_id,
        numerical_contract_id=numerical_contract_id,
        effective_contract_id=effective_contract_id,
        alias_of=alias_of,
    )
