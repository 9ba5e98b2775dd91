"""A model-free runtime: a tiny Llama in NumPy with seeded weights, and a fault on request.

It runs the whole producer and the whole localisation with nothing to download. The fault scales
one stage of one layer, as a wrong attribute of a kernel would.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from cke.artifacts.engine import Facts, KvFacts, Observation
from cke.artifacts.fingerprints import Hasher
from cke.artifacts.stages import LLAMA

Floats = NDArray[np.float32]
LAYERS, WIDTH, HEADS, HEAD, HIDDEN, VOCABULARY = 6, 16, 2, 8, 24, 64


class Fault(msgspec.Struct, frozen=True):
    """What is wrong with the candidate: one stage of one layer, scaled."""

    layer: int
    stage: str
    factor: float = 1.5


class SeededEngine:
    """The tiny model; engines of one seed differ by their fault alone."""

    def __init__(self, seed: int = 0, fault: Fault | None = None, *, family: str = LLAMA) -> None:
        self.fault = fault
        self.weights = seeded_weights(seed)
        binary = Hasher().add("lis.seeded/v1", "" if fault is None else repr(fault))
        self.facts = Facts(
            binary=binary.fingerprint(),
            model_format="seeded",
            family=family,
            model=Hasher().add("seeded weights", seed).fingerprint(),
            config=Hasher().add("seeded config", LAYERS, WIDTH, HEADS).fingerprint(),
            input_mode="tokens",
            tokenizer=None,
            backend="numpy",
            threads=1,
            precision_path="f32",
            total_layers=LAYERS,
            kv=KvFacts(layer_count=LAYERS, kv_head_count=1, head_dim=HEAD, dtype="f32"),
            vocabulary=VOCABULARY,
            suppressed=(VOCABULARY - 2, VOCABULARY - 1),
            scales=(HEAD**-0.5,) * LAYERS,
        )

    def start(self, context: int, batch: int) -> "SeededSession":
        """Return a session with room for `context` positions."""
        return SeededSession(self, context)


class SeededSession:
    """One run; keys and values are kept by layer."""

    def __init__(self, engine: SeededEngine, context: int) -> None:
        self.max_tokens = context
        self._engine = engine
        self._keys: list[list[Floats]] = [[] for _ in range(LAYERS)]
        self._values: list[list[Floats]] = [[] for _ in range(LAYERS)]
        self._seen: dict[str, list[Floats]] = {}

    @property
    def used_tokens(self) -> int:
        """The positions that are populated."""
        return len(self._keys[0])

    def prefill(self, tokens: Sequence[int], capture: Sequence[str]) -> None:
        """Append tokens one by one."""
        self._seen = {}
        for token in tokens:
            self._forward(token)

    def decode(self, token: int, capture: Sequence[str]) -> Floats:
        """Append one token and return its logits."""
        self._seen = {}
        return self._forward(token)

    def observe(self, checkpoint: str) -> Observation | None:
        """Return a checkpoint of the last step."""
        rows = self._seen.get(checkpoint)
        return None if rows is None else observation_of(np.stack(rows)[None])

    def _forward(self, token: int) -> Floats:
        x = self._engine.weights["embed"][token]
        position = self.used_tokens
        for layer in range(LAYERS):
            x = self._layer(layer, x, position)
        logits: Floats = _norm(x) @ self._engine.weights["head"]
        return logits

    def _keep(self, layer: int, name: str, value: Floats) -> Floats:
        fault = self._engine.fault
        if fault is not None and (fault.layer, fault.stage) == (layer, name):
            value = value * np.float32(fault.factor)
        self._seen.setdefault(f"layer.{layer}.{name}", []).append(value)
        return value

    def _layer(self, layer: int, x: Floats, position: int) -> Floats:
        w = {name: self._engine.weights[f"{layer}.{name}"] for name in MATRICES}
        x = self._keep(layer, "layer_input", x)
        h = self._keep(layer, "attention_norm_output", _norm(x))
        q = self._keep(layer, "query_projection_output", (h @ w["q"]).reshape(HEADS, HEAD))
        k = self._keep(layer, "key_projection_output", (h @ w["k"]).reshape(1, HEAD))
        v = self._keep(layer, "value_projection_output", (h @ w["v"]).reshape(1, HEAD))
        q = self._keep(layer, "rope_query_output", _rope(q, position))
        self._keys[layer].append(self._keep(layer, "rope_key_output", _rope(k, position))[0])
        self._values[layer].append(v[0])
        scale = np.float32(HEAD**-0.5)
        scores = self._keep(
            layer, "attention_scores", q @ np.stack(self._keys[layer], axis=1) * scale
        )
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares = self._keep(
            layer, "attention_probabilities", weights / weights.sum(axis=-1, keepdims=True)
        )
        y = self._keep(layer, "attention_context", shares @ np.stack(self._values[layer]))
        y = self._keep(layer, "attention_output_projection", y.reshape(-1) @ w["o"])
        x = self._keep(layer, "post_attention_residual", x + y)
        h = self._keep(layer, "mlp_norm_output", _norm(x))
        gate = self._keep(layer, "mlp_gate_projection", h @ w["gate"])
        up = self._keep(layer, "mlp_up_projection", h @ w["up"])
        h = self._keep(layer, "mlp_gated_activation", gate / (1 + np.exp(-gate)) * up)
        down = self._keep(layer, "mlp_down_projection", h @ w["down"])
        return self._keep(layer, "layer_output", x + down)


MATRICES = {
    "q": (WIDTH, HEADS * HEAD),
    "k": (WIDTH, HEAD),
    "v": (WIDTH, HEAD),
    "o": (HEADS * HEAD, WIDTH),
    "gate": (WIDTH, HIDDEN),
    "up": (WIDTH, HIDDEN),
    "down": (HIDDEN, WIDTH),
}


def seeded_weights(seed: int) -> dict[str, Floats]:
    """Return the weights of a seed."""
    random = np.random.default_rng(seed)
    shapes = {"embed": (VOCABULARY, WIDTH), "head": (WIDTH, VOCABULARY)}
    shapes |= {
        f"{layer}.{name}": shape for layer in range(LAYERS) for name, shape in MATRICES.items()
    }
    return {
        name: (random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        for name, shape in shapes.items()
    }


def _norm(x: Floats) -> Floats:
    scaled: Floats = x / np.sqrt(np.mean(x * x) + np.float32(1e-5))
    return scaled


def _rope(x: Floats, position: int) -> Floats:
    half = HEAD // 2
    angles = (position / 100.0 ** (np.arange(half) / half)).astype(np.float32)
    cos, sin = np.cos(angles), np.sin(angles)
    left, right = x[:, :half], x[:, half:]
    return np.concatenate([left * cos - right * sin, right * cos + left * sin], axis=1)


def observation_of(array: NDArray[np.generic]) -> Observation:
    """Return the observation of a host array, summarised in float64."""
    elements = np.ascontiguousarray(array, np.float32)
    wide = elements.astype(np.float64).ravel()
    nan, inf = bool(np.isnan(wide).any()), bool(np.isinf(wide).any())
    if nan or inf:
        return Observation(elements.shape, elements, (0.0, 0.0, 0.0, 0.0, nan, inf))
    summary = (
        float(wide.min()),
        float(wide.max()),
        float(wide.mean()),
        float(np.sqrt(wide @ wide)),
        False,
        False,
    )
    return Observation(elements.shape, elements, summary)
