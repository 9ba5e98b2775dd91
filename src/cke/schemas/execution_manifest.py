"""What every execution artifact shares: the schema string, fingerprints and the manifest.

Key order on disk is the order of the fields. Additive keys that a struct does not know are
accepted by readers; `cke.artifacts.retention` refuses the prohibited ones.
"""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

SCHEMA: Final = "lis.execution_artifact/v1"

Hex16 = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
ArtifactSetId = Annotated[str, Meta(pattern="^aset1:[0-9a-f]{32}$")]
Name = Annotated[str, Meta(min_length=1, max_length=96, pattern=r"^[A-Za-z0-9_.+:\-]+$")]
Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Schema = Literal["lis.execution_artifact/v1"]
InputMode = Literal["tokens", "vocab_prompt", "hf_tokenizer_prompt"]
CaptureProfile = Literal["semantic_layer_and_intra_v1"]


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    """The base of every struct of an execution artifact."""


class Exact(Wire, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A struct whose key set is exact."""


class Fingerprint(Wire, frozen=True, kw_only=True):
    """FNV-1a 64 of what is named, and the size in bytes of what was hashed."""

    algorithm: Literal["fnv1a64"] = "fnv1a64"
    hex: Hex16
    size_bytes: Natural


class Retention(Wire, frozen=True, kw_only=True):
    """What the artifacts leave out."""

    absolute_paths: Literal["omitted"] = "omitted"
    raw_prompt_text: Literal["omitted"] = "omitted"
    generated_text: Literal["omitted"] = "omitted"


class Identified(Wire, frozen=True, kw_only=True):
    """Something that is known by its fingerprint alone."""

    fingerprint: Fingerprint


class ModelIdentity(Wire, frozen=True, kw_only=True):
    """Format, family and the weights file itself."""

    format: Name
    family: Name
    fingerprint: Fingerprint


class InputIdentity(Wire, frozen=True, kw_only=True):
    """How the prompt was given, and the tokenizer, or the token input, behind it."""

    mode: InputMode
    fingerprint: Fingerprint


class RuntimeIdentity(Wire, frozen=True, kw_only=True):
    """Settings of the run; the three of the intra-layer capture are present only when it is on."""

    configured_context: Positive
    batch_size: Positive
    generation_limit: Natural
    thread_count: Positive
    layer_checkpoints_enabled: bool
    layer_checkpoint_step: Natural
    intra_layer_checkpoints_enabled: Literal[True] | UnsetType = UNSET
    intra_layer_target_layer: Natural | UnsetType = UNSET
    diagnostic_capture_profile: CaptureProfile | UnsetType = UNSET
    diagnostics_enabled: bool
    perf_enabled: bool
    perf_per_token_enabled: bool
    precision_path: Name | UnsetType = UNSET
    fingerprint: Fingerprint


class BackendIdentity(Wire, frozen=True, kw_only=True):
    """The backend that ran, not the one that was asked for."""

    name: Name
    fingerprint: Fingerprint


class ExecutionManifest(Wire, frozen=True, kw_only=True):
    """The bounded semantic manifest that siblings of one execution share."""

    retention_policy: Retention
    binary: Identified
    model: ModelIdentity
    config: Identified
    input: InputIdentity
    runtime: RuntimeIdentity
    backend: BackendIdentity
