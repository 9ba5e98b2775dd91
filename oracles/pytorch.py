"""The transformers oracle: one model on CPU, captured by hooks and a registered attention.

The model's own eager attention computes; the registered function only records around it. Scores
are recomputed from q and k, because no eager attention of transformers returns them; expert
results likewise. Both say so in `derivation`.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import transformers

from cke.errors import CkeError, Diagnostic
from cke.oracles.base import Array, Sink
from cke.oracles.layout import axes_rank, config_sizes, product_size, unpack_axes
from cke.oracles.points import FunctionPoint, ModulePoint, Table, table_for, table_sizes
from cke.oracles.rows import RowSink, emit_rows, row_segment
from cke.runtime.records import record_of
from cke.runtime.schedule import (
    CaptureRequest,
    Pixels,
    check_pixels,
    plan_segments,
    tokens_sha256,
)
from cke.schemas.trace import (
    Body,
    CacheLayout,
    Identity,
    Neutrality,
    Producer,
    Segment,
)

TORCH_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
RECORDING = "cke_recording"
SCORES = "recomputed from q and k: scale, then soft cap, before the mask"
EXPERTS = "recomputed for the chosen experts from the routed input"


class PyTorchOracle:
    """A transformers model with its checkpoints; raises CkeError for a family without a table."""

    name = "pytorch"

    def __init__(self, path: Path, dtype: str = "f32", model: Any = None) -> None:
        self.path = path
        self.dtype = dtype
        self.model = model if model is not None else load_model(path, dtype)
        self.config = self.model.config.get_text_config()
        self.table = table_for(self.config.model_type)
        config = self.config.to_dict()
        self.dims = {**config_sizes(config), **table_sizes(self.table, config)}

    def capture(self, request: CaptureRequest, sink: Sink) -> Body:
        """Run the request with hooks, and again without: the outputs must be equal in bits."""
        request = msgspec.structs.replace(request, encode=self.table.encoder)
        check_pixels(request, self.table.pixels)
        segments = plan_segments(request)
        runs = self._runs(segments)
        sinks = [RowSink() for _ in runs] if len(runs) > 1 else [sink]
        equal, outputs = True, 0
        for run, target in zip(runs, sinks, strict=True):
            plain = [result[0] for result, _ in self._forwards(run, request.pixels)]
            recorder = _Recorder(self.table, self.dims, request, target)
            with recorder.attached(self.model):
                forwards = self._forwards(run, request.pixels, recorder.begin)
                for before, (result, cache) in zip(plain, forwards, strict=True):
                    recorder.outputs(result, cache)
                    equal = equal and torch.equal(before, result[0])
                    outputs += 1
        if len(runs) > 1:
            emit_rows(segments, [item for item in sinks if isinstance(item, RowSink)], sink)
        return self._body(request, equal, outputs)

    def _runs(self, segments: tuple[Segment, ...]) -> list[list[Segment]]:
        """Return the forwards of each run: all rows at once, or one row after the other."""
        padded = any(position < 0 for s in segments for row in s.positions for position in row)
        if not padded:
            return [list(segments)]
        rows = range(len(segments[0].tokens))
        return [
            [item for s in segments if (item := row_segment(s, row)) is not None] for row in rows
        ]

    def logits(self, request: CaptureRequest) -> list[list[Array]]:
        """Return f32[B, T, V] of every segment of every run, without any hook."""
        return [
            [_to_numpy(result[0].float()) for result, _ in self._forwards(run)]
            for run in self._runs(plan_segments(request))
        ]

    def weights(self) -> Iterator[tuple[str, Array]]:
        """Yield the loaded parameters under their transformers names."""
        for key, tensor in self.model.state_dict().items():
            yield key, _to_numpy(tensor)

    def module_weights(self) -> dict[tuple[str, str], Array]:
        """Return the loaded weights by (checkpoint id, operand) of the module that makes it.

        Stored as the model computes with them: [out, in] for a linear layer, experts first.
        """
        found: dict[tuple[str, str], Array] = {}
        for name, point in self.table.model.items():
            _weights_of(found, name, _submodule(self.model, point.module), point, self.dims)
        for index, layer in enumerate(self._layers()):
            for name, point in self.table.layer.items():
                key = f"layer.{index}.{name}"
                _weights_of(found, key, _submodule(layer, point.module), point, self.dims)
            experts = _submodule(layer, self.table.experts)
            if self.table.experts_function and experts is not None:
                gate, up = experts.gate_up_proj.chunk(2, dim=1)
                parts = {"gate": gate, "up": up, "expert_output": experts.down_proj}
                for name, value in self.table.experts_function.items():
                    if value.value in parts:
                        key = f"layer.{index}.{name}"
                        found[key, "weight"] = _to_numpy(parts[value.value])
        return found

    def _layers(self) -> list[Any]:
        """Return the module of every layer; one that is several layers in turn is repeated."""
        modules = list(_submodule(self.model, self.table.layers))
        count = self.config.num_hidden_layers if self.table.repeated else len(modules)
        return [modules[index * len(modules) // count] for index in range(count)]

    def _forwards(
        self,
        segments: list[Segment],
        pixels: Pixels | None = None,
        begin: Callable[[Segment], None] | None = None,
    ) -> Iterator[tuple[Any, Any]]:
        """Yield the result and the cache of each forward, one after the other."""
        cache = transformers.DynamicCache(config=self.config if self.table.recurrent else None)
        for segment in segments:
            if begin is not None:
                begin(segment)
            given: dict[str, Any] = {}
            if pixels is not None:
                given["pixel_values"] = torch.from_numpy(pixels.values)
            else:
                given["input_ids"] = torch.tensor(segment.tokens)
                given["position_ids"] = torch.tensor(segment.positions)
            if not self.table.encoder:
                given |= {"cache": cache, "use_cache": True}
            with torch.no_grad():
                result = self.model(**given)
            yield result, cache

    def _body(self, request: CaptureRequest, equal: bool, outputs: int) -> Body:
        dtypes: dict[str, int] = {}
        for tensor in self.model.state_dict().values():
            name = str(tensor.dtype).removeprefix("torch.")
            dtypes[name] = dtypes.get(name, 0) + 1
        return Body(
            side="oracle",
            producer=Producer(
                name=self.name,
                version=transformers.__version__,
                dtype=self.dtype,
                weight_dtypes=dtypes,
                settings={
                    "torch": str(torch.__version__),
                    "attention": "eager",
                    "float32_matmul_precision": torch.get_float32_matmul_precision(),
                    "model_class": type(self.model).__name__,
                },
                facts={"layers": self.config.num_hidden_layers, **self.dims},
            ),
            identity=Identity(
                model_sha256=None,
                family=self.config.model_type,
                circuit=None,
                manifest_sha256=None,
                tokens_sha256=tokens_sha256(request),
            ),
            segments=plan_segments(request),
            records=(),
            cache_layout=CacheLayout(
                layout_id="transformers.dynamic_cache",
                layer_stride=None,
                head_stride=None,
                token_stride=self.dims["E"],
                channel_stride=1,
                capacity=None,
            ),
            threads=torch.get_num_threads(),
            mesh={"devices": 1},
            environment={"python": sys.version.split()[0], "numpy": np.__version__},
            neutrality=Neutrality(
                status="neutral" if equal else "rejected",
                control_equal=None,
                outputs_equal=equal,
                mode="hooks",
                compared_outputs=outputs,
            ),
        )


def load_model(path: Path, dtype: str) -> Any:
    """Return the model of a folder or a GGUF file in `dtype`, dequantised, in eval mode."""
    if dtype not in TORCH_DTYPES:
        raise CkeError(
            Diagnostic(
                code="CKE711", message=f"the pytorch oracle runs f32, bf16 or f16, got `{dtype}`"
            )
        )
    arguments: dict[str, Any] = {
        "dtype": TORCH_DTYPES[dtype],
        "local_files_only": True,
        "attn_implementation": "eager",
    }
    folder = path
    if path.suffix == ".gguf":
        folder = path.parent
        arguments["gguf_file"] = path.name
        arguments["quantization_config"] = transformers.GgufConfig(dequantize=True)
    kind: Any = transformers.AutoModelForCausalLM
    if path.suffix != ".gguf":
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        if table_for(config.get_text_config().model_type).encoder:
            kind = transformers.AutoModel
    model = kind.from_pretrained(folder, **arguments)
    pin(model)
    return model


def pin(model: Any) -> None:
    """Set eval mode and the eager attention and experts, whose arithmetic is the published one."""
    model.eval()
    model.set_attn_implementation("eager")
    if type(model)._can_set_experts_implementation():
        model.set_experts_implementation("eager")


def _to_numpy(tensor: torch.Tensor) -> Array:
    if tensor.dtype == torch.bfloat16:
        import ml_dtypes

        raw = tensor.detach().contiguous().view(torch.int16).numpy()
        return raw.view(ml_dtypes.bfloat16)
    array: Array = tensor.detach().contiguous().numpy()
    return array


class _Recorder:
    """Hooks of one capture; every value goes to the sink as soon as it is seen."""

    def __init__(
        self, table: Table, dims: dict[str, int], request: CaptureRequest, sink: Sink
    ) -> None:
        self.table = table
        self.dims = dims
        self.request = request
        self.sink = sink
        self.segment: Segment | None = None
        self.order = 0
        self.layer = -1

    def begin(self, segment: Segment) -> None:
        """State which forward the following values belong to."""
        self.segment = segment
        self.order = 0
        self.layer = -1

    def outputs(self, result: Any, cache: Any) -> None:
        """Record the model's own outputs, and what only its cache shows."""
        for name, shown in self.table.model.items():
            if not shown.module:
                self._seen(name, None, result, shown)
        held = {"cache_key": "keys", "cache_value": "values"}
        for role, point in self.table.cache.items():
            for layer, item in enumerate(cache.layers if point.value in held else ()):
                value = getattr(item, held[point.value])
                self._taken("attention.kv_append", layer, value, point, role)

    @contextmanager
    def attached(self, model: Any) -> Iterator[None]:
        """Install every hook and the recording attention; remove them on exit."""
        handles: list[Any] = []
        layers = _submodule(model, self.table.layers)
        before = model.config._attn_implementation
        experts = model.get_experts_implementation() if self.table.experts_function else None
        try:
            for name, point in self.table.model.items():
                if point.module:
                    handles.append(self._hook(_submodule(model, point.module), name, None, point))
            for index, layer in enumerate(layers):
                handles.append(layer.register_forward_pre_hook(self._entered))
                for name, point in self.table.layer.items():
                    module = _submodule(layer, point.module)
                    if module is not None and _submodule(layer, point.when) is not None:
                        handles.append(self._hook(module, name, index, point))
            _register(self._attention, self._experts)
            model.set_attn_implementation(RECORDING)
            if experts is not None:
                model.set_experts_implementation(RECORDING)
            yield
        finally:
            for handle in handles:
                handle.remove()
            model.set_attn_implementation(before)
            if experts is not None:
                model.set_experts_implementation(experts)

    def _hook(self, module: Any, name: str, layer: int | None, point: ModulePoint) -> Any:
        if point.at == "input":

            def before(_: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
                value = arguments[0] if arguments else named["hidden_states"]
                self._seen(name, layer, value, point)

            return module.register_forward_pre_hook(before, with_kwargs=True)

        def after(_: Any, arguments: tuple[Any, ...], result: Any) -> None:
            self._seen(name, layer, result, point)

        return module.register_forward_hook(after)

    def _entered(self, *_: Any) -> None:
        self.layer += 1

    def _seen(self, name: str, layer: int | None, value: Any, point: ModulePoint) -> None:
        if layer is not None and self.table.repeated:
            layer = self.layer
        if not isinstance(value, torch.Tensor):
            value = value[point.item or 0]
        if point.chunk is not None:
            index, count = point.chunk
            value = value.chunk(count, dim=-1)[index]
        if point.view is not None:
            value = value.reshape(unpack_axes(point.view, tuple(value.shape), self.dims)[1])
        value = self._part(value, point)
        fitting = [axes for axes in point.axes.split("|") if axes_rank(axes) == value.ndim]
        self._keep(name, layer, value, (fitting or [point.axes])[0])

    def _part(self, value: torch.Tensor, point: ModulePoint | FunctionPoint) -> torch.Tensor:
        """Return one of the unequal parts of the last axis, where the point asks for one."""
        if not point.split:
            return value
        sizes = [product_size(words, self.dims) for words in point.split]
        part: torch.Tensor = value.split(sizes, dim=-1)[point.part]
        return part

    def _taken(
        self,
        name: str,
        layer: int,
        value: torch.Tensor,
        point: FunctionPoint,
        role: str | None = None,
    ) -> None:
        """Record a value [B, heads, rows, channels] of a function or of the cache."""
        value = value[:, 0] if point.shared else value.transpose(1, 2)
        self._keep(name, layer, self._part(value, point), point.axes, role)

    def _keep(
        self,
        name: str,
        layer: int | None,
        value: torch.Tensor,
        axes: str,
        role: str | None = None,
        derivation: str | None = None,
    ) -> None:
        if self.segment is None or not self.request.wants(name, layer):
            return
        sizes = {
            **self.dims,
            "B": len(self.segment.tokens),
            "T": len(self.segment.tokens[0]),
        }
        names, shape = unpack_axes(axes, tuple(value.shape), sizes)
        array = _to_numpy(value).reshape(shape)
        if array.dtype == np.int64:
            array = array.astype(np.int32)
        record = record_of(
            array,
            name=name,
            layer=layer,
            phase=self.segment.phase,
            segment=self.segment.index,
            axes=names,
            role=role,
            derivation=derivation,
            order=self.order,
        )
        self.order += 1
        self.sink.add(record, array)

    def _attention(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **named: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        eager = sys.modules[type(module).__module__].eager_attention_forward
        result, probabilities = eager(module, query, key, value, attention_mask, **named)
        fresh = query.shape[2]
        heads = {
            "query": query,
            "key": key,
            "value": value,
            "new_key": key[:, :, -fresh:],
            "new_value": value[:, :, -fresh:],
        }
        layer = self.layer
        values = {"probabilities": probabilities, "context": result}
        if self.request.wants("attention.attention_scores", layer):
            values["scores"] = _scores(query, key, named)
        for name, point in self.table.attention_function.items():
            derivation = SCORES if point.value == "scores" else None
            if point.value in values:
                self._keep(name, layer, values[point.value], point.axes, None, derivation)
            elif point.value in heads:
                self._taken(name, layer, heads[point.value], point)
        for role, point in self.table.cache.items():
            if point.value in heads:
                self._taken("attention.kv_append", layer, heads[point.value], point, role)
        return result, probabilities

    def _experts(
        self,
        module: Any,
        hidden: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
    ) -> torch.Tensor:
        result: torch.Tensor = type(module).forward.__wrapped__(module, hidden, ids, weights)
        layer = self.layer
        wanted = [
            (name, point)
            for name, point in self.table.experts_function.items()
            if self.request.wants(name, layer)
        ]
        if wanted:
            values = _expert_values(module, hidden, ids)
            for name, point in wanted:
                self._keep(name, layer, values[point.value], point.axes, None, EXPERTS)
        return result


def _scores(query: torch.Tensor, key: torch.Tensor, named: dict[str, Any]) -> torch.Tensor:
    groups = query.shape[1] // key.shape[1]
    keys = key.repeat_interleave(groups, dim=1)
    scores = torch.matmul(query, keys.transpose(2, 3)) * named["scaling"]
    cap = named.get("softcap")
    capped: torch.Tensor = scores if cap is None else torch.tanh(scores / cap) * cap
    return capped


def _expert_values(module: Any, hidden: torch.Tensor, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    rows = []
    for token, chosen in enumerate(ids):
        gates_ups = [module.gate_up_proj[expert] @ hidden[token] for expert in chosen]
        halves = [item.chunk(2) for item in gates_ups]
        activated = [module.act_fn(gate) for gate, _ in halves]
        gated = [item * up for item, (_, up) in zip(activated, halves, strict=True)]
        outputs = [
            module.down_proj[expert] @ item for expert, item in zip(chosen, gated, strict=True)
        ]
        rows.append(
            (
                torch.stack([gate for gate, _ in halves]),
                torch.stack([up for _, up in halves]),
                torch.stack(activated),
                torch.stack(gated),
                torch.stack(outputs),
            )
        )
    names = ("gate", "up", "activated", "gated", "expert_output")
    columns = (torch.stack(list(column)) for column in zip(*rows, strict=True))
    return dict(zip(names, columns, strict=True))


def _submodule(module: Any, paths: str) -> Any:
    """Return the first module that is there, of alternatives with `|`; None when none is."""
    found = (_at(module, path.strip()) for path in paths.split("|"))
    return next((item for item in found if item is not None), None)


def _at(module: Any, path: str) -> Any:
    for part in filter(None, path.split(".")):
        module = module[int(part)] if part.isdigit() else getattr(module, part, None)
        if module is None:
            return None
    return module


def _weights_of(
    found: dict[tuple[str, str], Array],
    key: str,
    module: Any,
    point: ModulePoint,
    dims: dict[str, int],
) -> None:
    """Add what a module that makes a checkpoint computes with; containers have none."""
    if module is None or not point.module or point.at != "output" or point.view is not None:
        return
    for operand, tensor in module.named_parameters(recurse=False):
        if operand not in ("weight", "bias"):
            continue
        value = tensor
        if operand == "weight" and type(module).__name__ == "Conv1D":
            value = value.T
        if point.chunk is not None:
            value = value.chunk(point.chunk[1], dim=0)[point.chunk[0]]
        if point.split:
            rows = [product_size(words, dims) for words in point.split]
            value = value.split(rows, dim=0)[point.part]
        found[key, operand] = _to_numpy(value)


def _register(attention: Callable[..., Any], experts: Callable[..., Any]) -> None:
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask

    transformers.AttentionInterface.register(RECORDING, attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(RECORDING, eager_mask)
    ALL_EXPERTS_FUNCTIONS.register(RECORDING, experts)
