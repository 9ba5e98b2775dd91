"""What the producer asks of a runtime: facts of identity, and steps that give logits.

A run takes the prompt but for its last token as the prefill, runtime checkpoint step 0; each decode
step feeds one token and is counted from 1, so that step N + 1 selects generated token N.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from cke.artifacts.fingerprints import RAW_GREEDY, Policy
from cke.schemas.decode_trace import DecodeTrace
from cke.schemas.execution_manifest import Fingerprint, InputMode
from cke.schemas.layer_trace import LayerTrace
from cke.schemas.run_report import PrefixBinding, RunReport

Floats = NDArray[np.float32]


class KvFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The layout of a uniform cache."""

    layer_count: int
    kv_head_count: int
    head_dim: int
    dtype: str


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a runtime is; `kv` is None for a state that the cache block cannot describe.

    `suppressed` are the structural control tokens; `scales` the attention scale of each layer.
    """

    binary: Fingerprint
    model_format: str
    family: str
    model: Fingerprint
    config: Fingerprint
    input_mode: InputMode
    tokenizer: Fingerprint | None
    backend: str
    threads: int
    precision_path: str
    total_layers: int
    kv: KvFacts | None
    vocabulary: int
    suppressed: tuple[int, ...] = ()
    scales: tuple[float, ...] = ()
    load_ns: Mapping[str, int] = {}


class Observation(msgspec.Struct, frozen=True):
    """One checkpoint: its shape, its elements for the digest, and its summary.

    The summary is (min, max, mean, l2, nan, inf) as the device computed it.
    """

    shape: tuple[int, ...]
    elements: Floats
    summary: tuple[float, float, float, float, bool, bool]


class Session(Protocol):
    """One run in progress over equal rows."""

    max_tokens: int

    @property
    def used_tokens(self) -> int:
        """The most positions of any row that are populated."""
        ...

    def prefill(self, tokens: Sequence[int], capture: Sequence[str]) -> None:
        """Append tokens; keep the named checkpoints for `observe`."""
        ...

    def decode(self, token: int, capture: Sequence[str]) -> Floats:
        """Append one token and return the logits [V] of the first row."""
        ...

    def observe(self, checkpoint: str) -> Observation | None:
        """Return a checkpoint of the last captured step, None when the model has none such."""
        ...


class Engine(Protocol):
    """A runtime with one model."""

    facts: Facts

    def start(self, context: int, batch: int) -> Session:
        """Return a session with room for `context` positions."""
        ...


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What one execution is asked for; `context` 0 is as many positions as it needs."""

    tokens: tuple[int, ...]
    generate: int
    policy: Policy = RAW_GREEDY
    context: int = 0
    batch: int = 1
    stops: tuple[int, ...] = ()
    forced: tuple[int, ...] = ()
    binding: PrefixBinding | None = None
    checkpoint_step: int | None = None
    intra_layer: int | None = None
    diagnostics: bool = False
    perf: bool = False
    perf_per_token: bool = False
    perf_tag: str = "run"
    text: bool = False

    @property
    def rows(self) -> int:
        """The positions that the run needs room for."""
        return self.context or len(self.tokens) + len(self.forced) + max(self.generate, 1)


class Execution(msgspec.Struct, frozen=True):
    """The artifacts of one execution; `layers` when layer checkpoints were asked for.

    `step_ns` is the time of each selection; no artifact holds it.
    """

    report: RunReport
    trace: DecodeTrace
    layers: LayerTrace | None = None
    step_ns: tuple[int, ...] = ()

    def documents(self) -> dict[str, Any]:
        """Return the artifacts as parsed JSON, by kind."""
        found: dict[str, Any] = {
            "run_report": msgspec.to_builtins(self.report),
            "decode_trace": msgspec.to_builtins(self.trace),
        }
        if self.layers is not None:
            found["layer_trace"] = msgspec.to_builtins(self.layers)
        parsed: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(found))
        return parsed
