"""A model as the engine of execution artifacts: identity, steps, and checkpoints on the device.

The captured step runs twice, on the production program and on one that captures; both must give
the same logits bit by bit, or nothing is captured. Summaries are computed from returned arrays.
"""

import hashlib
import importlib.metadata
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cke.api.model import Model
from cke.artifacts.engine import Facts, Floats, KvFacts, Observation
from cke.artifacts.fingerprints import Hasher, file_fingerprint
from cke.artifacts.refusal import refuse_capture
from cke.artifacts.selection import is_structural
from cke.artifacts.stages import STAGE_IDS, family_of
from cke.errors import MissingInputError
from cke.runtime.buckets import SEGMENT
from cke.runtime.drivers import XLA_OPTIONS, Driver, make_driver
from cke.runtime.session import Session
from cke.schemas.call_ir import CallIR, Program
from cke.schemas.execution_manifest import Fingerprint, InputMode
from cke.schemas.manifest import Manifest

CHUNK = 1 << 22
POINTS = (*STAGE_IDS, "layer_output")
NUMERICS = ("jax", "jaxlib", "numpy")


class ModelEngine:
    """A loaded model; the program that captures is built when a step is captured first."""

    def __init__(self, model: Model, input_mode: InputMode = "tokens") -> None:
        self.model = model
        self.driver = model.driver()
        self._drivers: dict[tuple[str, ...], Driver] = {}
        self.points = point_keys(model.manifest)
        self.facts = model_facts(model, self.driver, input_mode)

    def start(self, context: int, batch: int) -> "ModelSession":
        """Return a session over a uniform cache of at least `context` positions."""
        return ModelSession(self, context, batch)

    def evidence(self, names: tuple[str, ...]) -> Driver:
        """Return the driver of the package that captures the given checkpoint names."""
        if names not in self._drivers:
            model = self.model
            package = model.capturing(names)
            self._drivers[names] = make_driver(resolved(self.driver), package, model.weights)
        return self._drivers[names]


def resolved(driver: Driver) -> str:
    """Return the driver that steps run on; `auto` steps per layer."""
    return "per_layer" if driver.name == "auto" else driver.name


class ModelSession:
    """One run of equal rows."""

    def __init__(self, engine: ModelEngine, context: int, batch: int) -> None:
        self._engine = engine
        self._batch = batch
        self._seen: dict[str, list[Array]] = {}
        self._session = Session(
            engine.driver, batch=batch, rows=context, context=engine.model.context, uniform=True
        )
        sizes = {
            slot["positions"].shape[1]
            for slots in self._session.state.values()
            for slot in slots.values()
            if "positions" in slot
        }
        if len(sizes) != 1:
            refuse_capture("the cache of this model is not uniform")
        self.max_tokens = int(sizes.pop())

    @property
    def used_tokens(self) -> int:
        """The most positions of any row that are populated."""
        return int(self._session.lengths.max())

    def prefill(self, tokens: Sequence[int], capture: Sequence[str]) -> None:
        """Append tokens; a captured prefill starts an empty session."""
        rows = np.tile(np.asarray(tokens, np.int32), (self._batch, 1))
        control = self._session.prefill(rows)
        if not capture:
            return
        expected = np.asarray(control)
        self._session.reset()
        with _Swapped(self._session, self._evidence(capture)):
            for start in range(0, rows.shape[1], SEGMENT):
                part = rows[:, start : start + SEGMENT]
                found = self._session.prefill(part)
                self._keep(capture, "prefill", part.shape[1])
        _check_neutral(expected, np.asarray(found))

    def decode(self, token: int, capture: Sequence[str]) -> Floats:
        """Append one token to every row and return the logits of the first."""
        session, column = self._session, [token] * self._batch
        if not capture:
            return _first_row(session.decode(column))
        saved = (
            jax.tree.map(jnp.copy, session.state),
            session.lengths.copy(),
            session.positions.copy(),
        )
        expected = np.asarray(session.decode(column))
        session.state, session.lengths, session.positions = saved
        with _Swapped(session, self._evidence(capture)):
            found = session.decode(column)
            self._keep(capture, "decode", 1)
        _check_neutral(expected, np.asarray(found))
        return _first_row(found)

    def observe(self, checkpoint: str) -> Observation | None:
        """Return a checkpoint of the captured step, summarised on the device."""
        parts = self._seen.get(checkpoint)
        if parts is None:
            return None
        return observe_array(parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1))

    def _evidence(self, capture: Sequence[str]) -> Driver:
        points = {name.split(".", 2)[2] for name in capture}
        keys = {key for (_, point), key in self._engine.points.items() if point in points}
        return self._engine.evidence(tuple(sorted(keys)))

    def _keep(self, capture: Sequence[str], phase: str, width: int) -> None:
        """Keep the captured arrays without the padding of their buckets."""
        for name in capture:
            _, layer, point = name.split(".", 2)
            key = self._engine.points.get((phase, point))
            array = self._session.captured.get(f"layer.{layer}.{key}")
            if array is None:
                continue
            array = array[:, :, :width] if point in KEYED else array[:, :width]
            if point in KEYED:
                array = array[..., : self.used_tokens]
            self._seen.setdefault(name, []).append(array)


KEYED = ("attention_scores", "attention_probabilities")
"""Points of shape [B, H, T, S]: their keys end where the cache is empty."""


class _Swapped:
    """Runs a session on another driver of the same state, then on its own again."""

    def __init__(self, session: Session, driver: Driver) -> None:
        self._session = session
        self._driver = driver

    def __enter__(self) -> None:
        self._session.driver, self._driver = self._driver, self._session.driver

    def __exit__(self, *_: object) -> None:
        self._session.driver, self._driver = self._driver, self._session.driver


def _check_neutral(expected: np.ndarray, found: np.ndarray) -> None:
    if expected.tobytes() != found.tobytes():
        refuse_capture("the capture is not neutral: the captured step gives other logits")


def _first_row(logits: Any) -> Floats:
    row: Floats = np.asarray(logits[0]).astype(np.float32, copy=False)
    return row


@jax.jit
def _summarise(array: Array) -> tuple[Array, ...]:
    wide = array.astype(jnp.float64).ravel()
    nan, inf = jnp.isnan(wide).any(), jnp.isinf(wide).any()
    return wide.min(), wide.max(), wide.mean(), jnp.sqrt(jnp.dot(wide, wide)), nan, inf


def observe_array(array: Array) -> Observation:
    """Return the observation of a device array: its summary in float64, its elements as fp32."""
    with jax.enable_x64(True):
        low, high, mean, l2, nan, inf = (np.asarray(item) for item in _summarise(array))
    elements = np.ascontiguousarray(np.asarray(array).astype(np.float32))
    summary = (float(low), float(high), float(mean), float(l2), bool(nan), bool(inf))
    return Observation(elements.shape, elements, summary)


def point_keys(manifest: Manifest) -> dict[tuple[str, str], str]:
    """Return the capture key of each point of a layer, by phase."""
    return {
        (item.phase, item.checkpoint.point): item.checkpoint.name
        for item in manifest.checkpoints
        if item.checkpoint.point in POINTS and item.layers
    }


def model_facts(model: Model, driver: Driver, input_mode: InputMode) -> Facts:
    """Return what the model and its runtime are."""
    weights_started = time.perf_counter_ns()
    fingerprint = _weights_fingerprint(model)
    hashing = time.perf_counter_ns() - weights_started
    program = model.package.program("decode")
    seconds = sum(model.seconds.values())
    prompt = input_mode != "tokens"
    return Facts(
        binary=binary_fingerprint(model, driver),
        model_format="safetensors" if model.files.format == "hf" else "gguf",
        family=family_of(model.manifest.circuit),
        model=fingerprint,
        config=_config_fingerprint(model),
        input_mode=input_mode,
        tokenizer=_tokenizer_fingerprint(model) if prompt else None,
        backend=f"xla_{jax.default_backend()}_{resolved(driver)}",
        threads=len(os.sched_getaffinity(0)),
        precision_path=model.dtype,
        total_layers=sum(step.layer is not None for step in program.steps),
        kv=kv_facts(program),
        vocabulary=model.package.calls.dims["V"],
        suppressed=structural_tokens(model),
        scales=attention_scales(model.package.calls),
        load_ns={"model_load": int(seconds * 1e9) + hashing},
    )


def kv_facts(program: Program) -> KvFacts | None:
    """Return the layout of the caches when all layers have one and all are alike, else None."""
    layers = sum(step.layer is not None for step in program.steps)
    lanes = {
        (slot.kind, len(slot.lanes), lane.type.shape[2:], lane.type.dtype)
        for slot in program.slots
        for lane in slot.lanes
    }
    if len(program.slots) != layers or len(lanes) != 1:
        return None
    kind, count, shape, dtype = lanes.pop()
    if kind != "cache" or count != 2 or len(shape) != 2:
        return None
    heads, width = map(int, shape)
    return KvFacts(layer_count=layers, kv_head_count=heads, head_dim=width, dtype=dtype)


def attention_scales(calls: CallIR) -> tuple[float, ...]:
    """Return the scale of each layer's attention, where it has one."""
    program = next(item for item in calls.programs if item.phase == "decode")
    functions = {item.name: item for item in program.functions}
    scales: list[float] = []
    for step in program.steps:
        for call in functions[step.function].calls if step.layer is not None else ():
            if not any(member.operator == "sdpa" for member in call.members):
                continue
            names = [a.name for a in call.arguments if (a.operand, a.source) == ("scale", "scalar")]
            value = step.scalars[str(names[0])] if names else call.attributes.get("scale")
            if isinstance(value, int | float):
                scales.append(float(value))
    return tuple(scales)


def structural_tokens(model: Model) -> tuple[int, ...]:
    """Return the structural control tokens; a model without a tokenizer has none."""
    try:
        tokenizer = model.tokenizer
    except MissingInputError:
        return ()
    found = range(min(tokenizer.size, model.package.calls.dims["V"]))
    return tuple(token for token in found if is_structural(tokenizer.text_of(token)))


def binary_fingerprint(model: Model, driver: Driver) -> Fingerprint:
    """Return the fingerprint of the generated package and of the numerics that it calls."""
    folder = model.package.folder
    if folder is None:
        refuse_capture("the binary identity could not be captured")
    files = sorted([*folder.glob("*.py"), folder / "manifest.json"])
    hasher = Hasher()
    for file in files:
        hasher.add(file.name, hashlib.sha256(file.read_bytes()).hexdigest())
    for package in NUMERICS:
        hasher.add(package, importlib.metadata.version(package))
    hasher.add(resolved(driver), repr(sorted(XLA_OPTIONS.items())))
    hasher.add(os.environ.get("XLA_FLAGS", ""), jax.default_backend(), jax.device_count())
    return hasher.fingerprint(sum(file.stat().st_size for file in files))


def _weights_fingerprint(model: Model) -> Fingerprint:
    files = {tensor.file for tensor in model.files.located.values()}
    return file_fingerprint(map(_hashed, sorted(files)))


def _config_fingerprint(model: Model) -> Fingerprint:
    if model.files.format == "hf":
        return file_fingerprint([_hashed(model.files.path / "config.json")])
    return _header_fingerprint(model)


def _tokenizer_fingerprint(model: Model) -> Fingerprint:
    if model.files.format == "gguf":
        return _header_fingerprint(model)
    found = sorted(model.files.path.glob("tokenizer*.json"))
    return file_fingerprint(map(_hashed, found))


def _header_fingerprint(model: Model) -> Fingerprint:
    """Return the fingerprint of a GGUF file's header: config and tokenizer are in it."""
    start = min(tensor.offset for tensor in model.files.located.values())
    return file_fingerprint([_hashed(model.files.path, start)])


def _hashed(file: Path, limit: int | None = None) -> tuple[str, int]:
    digest, left = hashlib.sha256(), file.stat().st_size if limit is None else limit
    size = left
    with file.open("rb") as stream:
        while left and (block := stream.read(min(CHUNK, left))):
            digest.update(block)
            left -= len(block)
    return digest.hexdigest(), size
