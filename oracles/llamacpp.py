"""The llama.cpp oracle: every graph tensor of a GGUF file, read through the eval callback.

Parity settings are pinned: no flash attention, an f32 cache, no repacked buffers, one sequence
per context. Rows of a batch are run one after the other, each in a context of its own.
"""

import ctypes
import platform
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import msgspec
import numpy as np

from cke.errors import CkeError, Diagnostic, Note
from cke.oracles.base import Array, Sink
from cke.oracles.ggml import QUIET, name_and_op, op_float, read_tensor
from cke.oracles.gguf_writer import ROPE_PAIRS
from cke.oracles.layout import unpack_axes
from cke.oracles.points import WINDOWED, GraphPoint, graph_table
from cke.oracles.rows import RowSink, emit_rows, row_segment
from cke.runtime.records import record_of
from cke.runtime.schedule import CaptureRequest, plan_segments, tokens_sha256
from cke.schemas.trace import Body, CacheLayout, Identity, Neutrality, Producer, Segment

PAIRS = "rope pairs of the file's basis undone"
SCALED = "the product of q and k, times the scale of the softmax that follows"
CHOSEN = "the leading columns of the sorted router logits"
CALLBACK = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p)


class Kept(msgspec.Struct, frozen=True):
    """A capture of a forward; `computed` and `through` as in the schema of a record."""

    array: Array
    axes: tuple[str, ...]
    derivation: str | None = None
    computed: str | None = None
    through: str | None = None


Captures = dict[tuple[str, int | None, str | None], Kept]


class LlamaCppOracle:
    """A GGUF file in llama.cpp; raises CkeError for a file that it does not load."""

    name = "llamacpp"

    def __init__(self, path: Path, threads: int = 1) -> None:
        self.path = path
        self.threads = threads
        llama_cpp.llama_log_set(QUIET, None)
        llama_cpp.llama_backend_init()
        settings = llama_cpp.llama_model_default_params()
        settings.use_extra_bufts = False
        settings.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), settings)
        if not self.model:
            raise CkeError(
                Diagnostic(
                    code="CKE714", file=str(path), message="llama.cpp does not load this file"
                )
            )
        self.dims = self._dims()
        self.architecture = self._metadata("general.architecture")
        self.pairs = self.architecture in ROPE_PAIRS
        window = self._metadata(f"{self.architecture}.attention.sliding_window")
        self.window = int(window) if window and self.architecture not in WINDOWED else None

    def close(self) -> None:
        """Free the model."""
        llama_cpp.llama_model_free(self.model)

    def capture(self, request: CaptureRequest, sink: Sink) -> Body:
        """Run the request with the callback, and again without: the logits must be equal."""
        segments = plan_segments(request)
        self._refuse_longer(segments)
        equal, outputs, sinks = True, 0, []
        for row in range(len(request.tokens)):
            run = [item for s in segments if (item := row_segment(s, row)) is not None]
            plain = self._row(run, None)
            recorders = [Recorder(self, request, segment) for segment in run]
            target = RowSink()
            for before, after, recorder in zip(
                plain, self._row(run, recorders), recorders, strict=True
            ):
                equal = equal and np.array_equal(before, after, equal_nan=True)
                outputs += 1
                recorder.emit(target)
            sinks.append(target)
        emit_rows(segments, sinks, sink)
        return self._body(request, equal, outputs)

    def _refuse_longer(self, segments: tuple[Segment, ...]) -> None:
        """Raise CKE716 for more keys than a window that llama.cpp leaves out."""
        keys = max(max(segment.cache_token_count) for segment in segments)
        if self.window is not None and keys > self.window:
            raise CkeError(
                Diagnostic(
                    code="CKE716",
                    file=str(self.path),
                    message=f"llama.cpp has no window in `{self.architecture}`: expected at most "
                    f"the {self.window} tokens of the model's window, got {keys}",
                    notes=(Note("give fewer tokens, or use the pytorch oracle", label="help"),),
                )
            )

    def weights(self) -> Iterator[tuple[str, Array]]:
        """Yield the file's tensors dequantised, under their GGUF names."""
        for tensor in gguf.GGUFReader(self.path).tensors:
            yield tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type)

    def module_weights(self) -> Mapping[tuple[str, str], Array]:
        """Return the loaded weights by (checkpoint id, operand) of the op that makes it."""
        from cke.oracles.llamacpp_weights import LoadedWeights

        return LoadedWeights(self)

    def follow(self, recorder: "Recorder") -> None:
        """Run the recorder's forward in a context of its own."""
        self._row([recorder.segment], [recorder])

    def logits(self, request: CaptureRequest) -> list[list[Array]]:
        """Return, for every row, f32[T, V] of every segment that has a token of it."""
        segments = plan_segments(request)
        return [
            self._row([item for s in segments if (item := row_segment(s, row)) is not None], None)
            for row in range(len(request.tokens))
        ]

    def _row(self, run: list[Segment], recorders: "list[Recorder] | None") -> list[Array]:
        current: list[Recorder] = []

        def callback(tensor: int, ask: bool, _: Any) -> bool:
            return current[0].wants(tensor) if ask else current[0].seen(tensor)

        held = CALLBACK(callback)
        context = self._context(run, held if recorders else None)
        outputs: list[Array] = []
        try:
            for index, segment in enumerate(run):
                if recorders:
                    current[:] = [recorders[index]]
                outputs.append(self._decode(context, segment))
                if recorders:
                    recorders[index].finish(outputs[-1])
        finally:
            llama_cpp.llama_free(context)
        return outputs

    def _context(self, segments: list[Segment], callback: Any) -> Any:
        settings = llama_cpp.llama_context_default_params()
        total = sum(len(segment.tokens[0]) for segment in segments)
        settings.n_ctx = max(64, total)
        settings.n_batch = settings.n_ubatch = max(len(s.tokens[0]) for s in segments)
        settings.flash_attn_type = 0
        settings.type_k = settings.type_v = 0
        settings.swa_full = True
        settings.n_threads = settings.n_threads_batch = self.threads
        if callback is not None:
            kind = type(settings.cb_eval)
            pointer = ctypes.cast(callback, ctypes.c_void_p)
            settings.cb_eval = ctypes.cast(pointer, kind) if kind is not int else pointer.value
        context = llama_cpp.llama_init_from_model(self.model, settings)
        assert context, "llama.cpp gives no context for a model that it loaded"
        return context

    def _decode(self, context: Any, segment: Segment) -> Array:
        tokens, positions = segment.tokens[0], segment.positions[0]
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, (token, position) in enumerate(zip(tokens, positions, strict=True)):
            batch.token[i], batch.pos[i] = token, position
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, 1
        status = llama_cpp.llama_decode(context, batch)
        llama_cpp.llama_batch_free(batch)
        if status != 0:
            raise CkeError(
                Diagnostic(code="CKE715", message=f"llama.cpp decodes with status {status}")
            )
        pointer = llama_cpp.llama_get_logits(context)
        return np.ctypeslib.as_array(pointer, (len(tokens), self.dims["V"])).copy()

    def _dims(self) -> dict[str, int]:
        heads = llama_cpp.llama_model_n_head(self.model)
        vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        return {
            "H": heads,
            "K": llama_cpp.llama_model_n_head_kv(self.model),
            "D": llama_cpp.llama_model_n_embd(self.model),
            "V": llama_cpp.llama_vocab_n_tokens(vocabulary),
            "L": llama_cpp.llama_model_n_layer(self.model),
        }

    def _metadata(self, key: str) -> str:
        buffer = ctypes.create_string_buffer(256)
        llama_cpp.llama_model_meta_val_str(self.model, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    def _body(self, request: CaptureRequest, equal: bool, outputs: int) -> Body:
        kinds: dict[str, int] = {}
        for tensor in gguf.GGUFReader(self.path).tensors:
            kinds[tensor.tensor_type.name] = kinds.get(tensor.tensor_type.name, 0) + 1
        largest = max(kinds, key=lambda kind: kinds[kind] if kind != "F32" else 0)
        return Body(
            side="oracle",
            producer=Producer(
                name=self.name,
                version=llama_cpp.__version__,
                dtype={"F32": "f32", "F16": "f16", "BF16": "bf16"}.get(largest, largest),
                weight_dtypes=kinds,
                settings={
                    "flash_attention": False,
                    "cache_k": "f32",
                    "cache_v": "f32",
                    "extra_buffers": False,
                    "one_sequence_per_context": True,
                },
                facts=dict(self.dims),
            ),
            identity=Identity(
                model_sha256=None,
                family=self.architecture,
                circuit=None,
                manifest_sha256=None,
                tokens_sha256=tokens_sha256(request),
            ),
            segments=plan_segments(request),
            records=(),
            cache_layout=CacheLayout(
                layout_id="llamacpp.unified",
                layer_stride=None,
                head_stride=None,
                token_stride=None,
                channel_stride=None,
                capacity=None,
            ),
            threads=self.threads,
            mesh={"devices": 1},
            environment={"python": platform.python_version(), "numpy": np.__version__},
            neutrality=Neutrality(
                status="neutral" if equal else "rejected",
                control_equal=None,
                outputs_equal=equal,
                mode="eval_callback",
                compared_outputs=outputs,
            ),
        )


class Recorder:
    """Graph tensors of one forward of one row, by checkpoint; the last of a name wins."""

    def __init__(self, oracle: LlamaCppOracle, request: CaptureRequest, segment: Segment) -> None:
        self.table = graph_table()
        self.request = request
        self.segment = segment
        self.width = len(segment.tokens[0])
        self.valid = segment.cache_token_count[0]
        self.layers = oracle.dims["L"]
        self.pairs = oracle.pairs
        self.sizes = {**oracle.dims, "T": self.width}
        self.captures: Captures = {}
        self.layer = 0
        self.after_context = False
        self.through: str | None = None

    def wants(self, tensor: int) -> bool:
        """Return whether the callback shall see this tensor's values."""
        name, op = name_and_op(tensor)
        found = self._point(name, op)
        if found is not None and found[0].computed is not None:
            self.through = found[0].computed
        return found is not None or self._lane(name, op) is not None

    def seen(self, tensor: int) -> bool:
        """Keep the tensor's values; always lets the graph go on."""
        name, op = name_and_op(tensor)
        lane = self._lane(name, op)
        if lane is not None:
            self._keep_lane(tensor, *lane)
            return True
        found = self._point(name, op)
        assert found is not None, "llama.cpp shows a tensor that was not asked for"
        point, layer = found
        self.after_context = point.point == "attention.attention_context"
        if layer is not None:
            self.layer = layer
        self._keep(tensor, point, layer)
        return True

    def emit(self, sink: RowSink) -> None:
        """Give the captures of this forward to the row's sink."""
        for order, ((name, layer, role), kept) in enumerate(self.captures.items()):
            if not self.request.wants(name, layer):
                continue
            array = kept.array[None]
            record = record_of(
                array,
                name=name,
                layer=layer,
                phase=self.segment.phase,
                segment=self.segment.index,
                axes=("B", *kept.axes),
                role=role,
                derivation=kept.derivation,
                order=order,
            )
            told = {"computed": kept.computed, "through": kept.through}
            stated = {name: dtype for name, dtype in told.items() if dtype is not None}
            sink.add(msgspec.structs.replace(record, **stated), array)

    def finish(self, logits: Array) -> None:
        """Complete what is known only at the end: layer inputs, chosen experts, kv appends."""
        for layer in range(self.layers):
            above = ("embedding", None, None) if layer == 0 else ("layer_output", layer - 1, None)
            if above in self.captures:
                self.captures["layer_input", layer, None] = self.captures[above]
            ids = ("mlp.router_ids", layer, None)
            weights = ("mlp.router_weights", layer, None)
            if ids in self.captures and weights in self.captures:
                kept = self.captures[weights].array.shape[-1]
                array = self.captures[ids].array[:, :kept].astype(np.int32)
                self.captures[ids] = Kept(array, ("T", "A"), CHOSEN)
            for role, source in (("key", "rope_key_output"), ("value", "value_projection_output")):
                made = self.captures.get((f"attention.{source}", layer, None))
                if made is not None:
                    self.captures["attention.kv_append", layer, f"new_{role}"] = made
        self.captures["logits", None, None] = Kept(logits, ("T", "V"), through=self.through)

    def _point(self, name: str, op: str) -> tuple[GraphPoint, int | None] | None:
        if f"{name} {op}" in self.table.model:
            return self.table.model[f"{name} {op}"], None
        if self.after_context and name.startswith("node_") and op == "MUL_MAT":
            return self.table.layer["attn_out MUL_MAT"], self.layer
        match = re.fullmatch(r"(\w+)-(\d+)", name)
        stem, layer = (match[1], int(match[2])) if match else (name, self.layer)
        point = self.table.layer.get(f"{stem} {op}")
        return None if point is None else (point, layer)

    def _lane(self, name: str, op: str) -> tuple[str, int] | None:
        match = re.fullmatch(r"cache_([kv])_l(\d+) \(view\)", name)
        if match is None or op != "VIEW":
            return None
        return ("key" if match[1] == "k" else "value"), int(match[2])

    def _keep_lane(self, tensor: int, role: str, layer: int) -> None:
        array = read_tensor(tensor)[0]
        if role == "value":
            array = array.transpose(2, 1, 0)
        array = array[: self.valid]
        derivation = None
        if role == "key" and self.pairs:
            array, derivation = _unpaired(array), PAIRS
        axes = ("S", "K", "E")
        self.captures["attention.kv_append", layer, f"stored_{role}"] = Kept(
            np.ascontiguousarray(array), axes, derivation, through=self.through
        )

    def _keep(self, tensor: int, point: GraphPoint, layer: int | None) -> None:
        array = _squeezed(read_tensor(tensor), point.axes)
        derivation = None
        key = (point.point, layer, None)
        if point.axes.endswith("S"):
            array = array[:, : self.width, : self.valid]
        if point.point == "attention.attention_probabilities":
            self._scale_scores(layer, op_float(tensor, 0))
        names, shape = unpack_axes(point.axes, array.shape, self.sizes)
        array = np.ascontiguousarray(array).reshape(shape)
        if point.pairs and self.pairs:
            array, derivation = _unpaired(array), PAIRS
        self.captures[key] = Kept(array, names, derivation, point.computed, self.through)

    def _scale_scores(self, layer: int | None, scale: float) -> None:
        key = ("attention.attention_scores", layer, None)
        if key in self.captures and scale != 1.0:
            kept = self.captures[key]
            array = np.multiply(kept.array, np.float32(scale))
            self.captures[key] = msgspec.structs.replace(kept, array=array, derivation=SCALED)


def _squeezed(array: Array, axes: str) -> Array:
    rank = len(re.sub(r"\([^)]*\)", "X", axes).split())
    shape = array.shape[-rank:]
    if np.prod(shape) != array.size:
        shape = array.shape[-rank - 1 : -1]
    return array.reshape(shape)


def _unpaired(array: Array) -> Array:
    return np.ascontiguousarray(np.concatenate([array[..., 0::2], array[..., 1::2]], axis=-1))
