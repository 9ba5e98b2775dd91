"""The failure classes: one closed table of stage, owner rule and action (XRAY section 3).

Everything that names a class, an owner or an action reads it here; nothing else can be emitted.
"""

from typing import Literal, get_args

import msgspec

from cke.schemas.diagnosis import StageName

Owner = Literal[
    "circuit", "kernel_map", "kernel", "weights", "runtime", "reference_adapter", "compiler"
]
OWNERS: tuple[Owner, ...] = get_args(Owner)
STAGES: tuple[StageName, ...] = get_args(StageName)


class FailureClass(msgspec.Struct, frozen=True):
    """A row: the stage that finds it, who may own it (the first by default), what to do."""

    name: str
    stage: StageName
    owners: tuple[Owner, ...]
    action: str

    def owner(self, chosen: Owner | None = None) -> Owner:
        """Return the owner of a finding; one that the class does not allow is our bug."""
        owner = chosen or self.owners[0]
        assert owner in self.owners, f"{self.name} is never owned by {owner}"
        return owner


def _row(name: str, stage: StageName, owners: str, action: str) -> FailureClass:
    allowed = tuple(owner for owner in owners.split() if owner in OWNERS)
    return FailureClass(name, stage, allowed, action)


_ROWS = (
    _row(
        "INPUT_TOKEN_MISMATCH",
        "binding",
        "reference_adapter",
        "feed both sides the same token IDs: compare BOS, template and special tokens",
    ),
    _row(
        "IDENTITY_MISMATCH",
        "binding",
        "reference_adapter",
        "bind both captures to the same weights, circuit and fixture",
    ),
    _row(
        "RUNTIME_NOT_REPEATABLE",
        "binding",
        "kernel_map",
        "two uncaptured runs differ: find the provider, or declare it as a contract of its own",
    ),
    _row(
        "CAPTURE_NOT_NEUTRAL",
        "binding",
        "compiler",
        "recapture in isolated mode: a tensor that is not neutral is not evidence",
    ),
    _row(
        "EXECUTION_POLICY_MISMATCH",
        "schedule",
        "runtime",
        "align prefill and decode segmentation and cache transitions first",
    ),
    _row(
        "POSITION_STATE_MISMATCH", "schedule", "runtime", "align the position values that are fed"
    ),
    _row(
        "CACHE_STATE_METADATA_MISMATCH",
        "schedule",
        "runtime",
        "fix token count, append index or strides before comparing bytes",
    ),
    _row(
        "MISSING_CHECKPOINT",
        "metadata",
        "reference_adapter",
        "export the semantic boundary; never compare a substitute",
    ),
    _row(
        "CHECKPOINT_VERSION_MISMATCH",
        "metadata",
        "reference_adapter",
        "map to the declared version of the checkpoint",
    ),
    _row(
        "DIAGNOSTIC_EXPORT_MAPPING",
        "metadata",
        "reference_adapter",
        "fix the exporter's extent, dtype, shape or axes before blaming the model's maths",
    ),
    _row(
        "MISSING_TOLERANCE_PROFILE",
        "metadata",
        "reference_adapter",
        "add an entry for this backend and dtype to the profile, not to the circuit",
    ),
    _row(
        "LAYOUT_MISMATCH",
        "metadata",
        "circuit reference_adapter",
        "correct the axis map, or the declared logical layout: no permutation reconciles the two",
    ),
    _row(
        "CIRCUIT_PRODUCER_MISMATCH", "metadata", "circuit", "fix the edge from producer to consumer"
    ),
    _row(
        "POSITION_CONTRACT_MISMATCH",
        "metadata",
        "circuit",
        "align pairing, rotary width, base, scaling and frequency precision",
    ),
    _row(
        "STORAGE_CONTRACT_MISMATCH",
        "metadata",
        "circuit kernel_map",
        "declare and implement the matching storage and rounding boundary",
    ),
    _row(
        "REDUCTION_CONTRACT_MISMATCH",
        "metadata",
        "kernel_map",
        "resolve a provider with the required accumulator, order and merge",
    ),
    _row(
        "NUMERICAL_CONTRACT_MISMATCH",
        "metadata",
        "kernel_map",
        "register the measured contract and resolve exactly one provider",
    ),
    _row(
        "KERNEL_BINDING_MISMATCH",
        "metadata",
        "compiler",
        "make call IR keep the exact kernel ID and function that were resolved",
    ),
    _row(
        "WEIGHT_BINDING_MISMATCH",
        "weights",
        "weights",
        "fix the name map, transposition, permutation or tying",
    ),
    _row(
        "WEIGHT_VALUE_DIVERGENCE",
        "weights",
        "weights",
        "fix dequantisation: scale, zero point, packing",
    ),
    _row(
        "STATE_CACHE_DIVERGENCE",
        "numbers",
        "runtime",
        "check append source, round trip, previous row and valid rows, in that order",
    ),
    _row(
        "NONFINITE_OUTPUT",
        "numbers",
        "kernel circuit kernel_map weights runtime",
        "stop at the first producer of a NaN or infinity",
    ),
    _row(
        "ATTENTION_ARITHMETIC_DIVERGENCE",
        "numbers",
        "kernel",
        "with identical q and cache, compare split, rounding and merge order",
    ),
    _row(
        "KERNEL_IMPLEMENTATION_DIVERGENCE",
        "numbers",
        "kernel",
        "reproduce in the isolated kernel test and fix the kernel's arithmetic",
    ),
    _row(
        "CIRCUIT_SEMANTICS_DIVERGENCE",
        "numbers",
        "circuit",
        "correct the circuit: the kernel does what it says, and it says the wrong thing",
    ),
    _row(
        "COMPILED_PROGRAM_DIVERGENCE",
        "numbers",
        "compiler",
        "op by op agrees, the compiled program does not: bisect the emitted code and XLA's flags",
    ),
    _row(
        "REFERENCE_DEFECT",
        "numbers",
        "reference_adapter",
        "report the oracle's defect; pin a version without it, or the other oracle",
    ),
    _row(
        "RANKING_DIVERGENCE",
        "behaviour",
        "circuit kernel kernel_map weights runtime reference_adapter compiler",
        "attribute at the forced position, never along independently generated text",
    ),
)
CLASSES: dict[str, FailureClass] = {row.name: row for row in _ROWS}

ARCHITECTURE_POLICY: dict[str, str] = {
    "circuit": "the circuit file: its requirement, constant or edge",
    "kernel_map": "kernel_registry/contracts: a provider's declared capability or eligibility",
    "kernel": "kernel_registry/kernels: the arithmetic of one kernel",
    "weights": "the `parts` column of the circuit, or the loader under runtime/weights",
    "runtime": "runtime: session, schedule and state",
    "reference_adapter": "oracles: the adapter's table, or its tolerance profile",
    "compiler": "dsl or codegen: a generic rule, never a branch for a model",
}
POLICY = "DSL and codegen are deterministic consumers: no model-specific fix lands in them"
