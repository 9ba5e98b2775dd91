"""Budgets: how far two correct computations of one checkpoint may be apart (XRAY-13).

The rule `forward_error` is the usual first-order model of rounding (N. J. Higham, Accuracy and
Stability of Numerical Algorithms, chapter 3, in its probabilistic form): a sum of n products errs
by about sqrt(n) unit roundoffs, and independent errors of d operations add in quadrature.
"""

import math

from cke.schemas.numerical_report import Gate

UNIT_ROUNDOFF = {
    "fp64": 2.0**-53,
    "fp32": 2.0**-24,
    "fp16": 2.0**-11,
    "bf16": 2.0**-8,
}
OPERATIONS_PER_LAYER = 16
HEADROOM = 4.0
PEAK = 16.0


def forward_error(
    dtypes: tuple[str, ...],
    reduction: int,
    depth: int,
    oracle_rms: float | None,
    oracle_max: float | None = None,
) -> Gate:
    """Return the gate of a checkpoint.

    `dtypes` are those in which the sides store values; the coarsest decides. `reduction` is the
    longest sum up to here, `depth` the number of layers passed. Storage in a low precision rounds
    every operation; wider accumulators leave the sums out of it. The limit of one element is PEAK
    times that of the mean, or its own relative error when it stands out: an element that is a
    hundred times the mean is a sum of terms of its own size, and errs in proportion to it.
    """
    roundoff = max(UNIT_ROUNDOFF.get(dtype, 0.0) for dtype in dtypes)
    wide = roundoff >= UNIT_ROUNDOFF["fp16"]
    per_operation = 1.0 if wide else 1.0 + math.sqrt(reduction) / 4
    steps = math.sqrt(OPERATIONS_PER_LAYER * (depth + 1))
    relative = HEADROOM * roundoff * per_operation * steps
    peak = None if oracle_rms is None else relative * max(PEAK * oracle_rms, oracle_max or 0.0)
    return Gate(
        rule="forward_error",
        relative_rmse=relative,
        max_abs=peak,
        reduction=reduction,
        depth=depth,
    )
