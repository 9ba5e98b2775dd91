"""The comparisons of one admitted packet, each labelled; the original-Q one is the primary."""

import msgspec
import numpy as np

from cke.attention_packet.bits import Float32, round_to
from cke.attention_packet.geometry import Sizes
from cke.attention_packet.metrics import compare
from cke.attention_packet.payload import NativeTensor
from cke.attention_packet.reference import Attention, History, attend
from cke.schemas.attention_packet import (
    Counterfactual,
    Float64Comparison,
    ReferenceComparison,
    RoundedReference,
)

ORIGINAL = "original Q, independent FP32 softmax reference; not exact real arithmetic"
ROUNDED = "original-Q FP32 reference rounded to the outward output dtype"
NARROWED = "counterfactual: Q rounded to the storage dtype; not the primary reference"
FLOAT64 = "added by CKE: float64 evaluation of the same formula; not the primary reference"


class Inputs(msgspec.Struct, frozen=True):
    """Finite tensors of one admitted packet."""

    tensors: dict[str, NativeTensor]
    sizes: Sizes
    scale: float

    @property
    def queries(self) -> Float32:
        """f32[QH, D], as captured before any narrowing."""
        return self.tensors["queries"].token()

    @property
    def output(self) -> Float32:
        """f32[QH, D], as returned by the captured call."""
        return self.tensors["output"].token()

    @property
    def history(self) -> History:
        """Stored keys and values."""
        keys, values = self.tensors["storedKeys"], self.tensors["storedValues"]
        return History(keys.bits, values.bits, keys.dtype)


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Every comparison, and whether the output or the reference is not finite."""

    original: ReferenceComparison
    rounded: RoundedReference
    narrowed: Counterfactual | None
    float64: Float64Comparison
    nonfinite: bool


def compare_references(inputs: Inputs) -> Found:
    """Compare the captured output with the reference and with its labelled variants."""
    reference = attend(inputs.queries, inputs.history, inputs.scale)
    group, dtype = inputs.sizes.group, inputs.tensors["output"].dtype
    finite = np.isfinite(inputs.output).all() and np.isfinite(reference.output).all()
    return Found(
        original=ReferenceComparison(
            label=ORIGINAL,
            comparison=compare(inputs.output, reference.output, group),
            intermediate_nonfinite=reference.nonfinite,
        ),
        rounded=RoundedReference(
            label=ROUNDED,
            dtype=dtype,
            comparison=compare(inputs.output, round_to(reference.output, dtype), group),
        ),
        narrowed=_counterfactual(inputs, reference),
        float64=_float64(inputs, reference),
        nonfinite=not finite,
    )


def _counterfactual(inputs: Inputs, reference: Attention) -> Counterfactual | None:
    storage = inputs.tensors["storedKeys"].dtype
    if inputs.tensors["queries"].dtype != "float32" or storage == "float32":
        return None
    queries, group = round_to(inputs.queries, storage), inputs.sizes.group
    narrowed = attend(queries, inputs.history, inputs.scale)
    return Counterfactual(
        label=NARROWED,
        dtype=storage,
        comparison=compare(inputs.output, narrowed.output, group),
        intermediate_nonfinite=narrowed.nonfinite,
        difference_from_original_reference=compare(narrowed.output, reference.output, group),
        query_rounding_difference=compare(queries, inputs.queries, group),
    )


def _float64(inputs: Inputs, reference: Attention) -> Float64Comparison:
    exact = attend(inputs.queries, inputs.history, inputs.scale, np.float64)
    group = inputs.sizes.group
    return Float64Comparison(
        label=FLOAT64,
        reference_difference=compare(reference.output, exact.output, group),
        output_difference=compare(inputs.output, exact.output, group),
    )
