"""Error of one result against another: L-infinity, RMSE and relative L2, over all and per head.

Statistics are accumulated in float64. No element is dropped and no epsilon is added: a metric
that does not exist is null, with its reason.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from cke.schemas.attention_packet import Comparison, HeadMetrics, Metrics

NONFINITE = "nonfinite values"
ZERO_REFERENCE = "zero reference norm with nonzero error"


def compare(values: npt.NDArray[Any], reference: npt.NDArray[Any], group: int) -> Comparison:
    """Compare [QH, D] with [QH, D]; `group` is the number of query heads per kv head."""
    heads = tuple(
        HeadMetrics(
            query_head=head, kv_head=head // group, **_metrics(values[head], reference[head])
        )
        for head in range(values.shape[0])
    )
    return Comparison(global_=Metrics(**_metrics(values, reference)), per_head=heads)


def _metrics(values: npt.NDArray[Any], reference: npt.NDArray[Any]) -> dict[str, Any]:
    with np.errstate(invalid="ignore"):
        wide, base = values.astype(np.float64), reference.astype(np.float64)
    if not (np.isfinite(wide).all() and np.isfinite(base).all()):
        return {"linf": None, "rmse": None, "relative_l2": None, "undefined_reason": NONFINITE}
    error = wide - base
    size, norm = float(np.linalg.norm(error)), float(np.linalg.norm(base))
    relative, reason = _relative(size, norm)
    return {
        "linf": float(np.abs(error).max()),
        "rmse": size / math.sqrt(error.size),
        "relative_l2": relative,
        "undefined_reason": reason,
    }


def _relative(size: float, norm: float) -> tuple[float | None, str | None]:
    if norm:
        return size / norm, None
    return (None, ZERO_REFERENCE) if size else (0.0, None)
