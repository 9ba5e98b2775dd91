"""The transformers oracle: one model on CPU, captured by the hooks of `pytorch_hooks`."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import transformers

from cke.errors import CkeError, Diagnostic, Note
from cke.oracles.base import Array, Sink
from cke.oracles.layout import config_sizes
from cke.oracles.points import table_for, table_sizes
from cke.oracles.pytorch_hooks import Recorder
from cke.oracles.pytorch_modules import submodule, to_numpy, weights_of
from cke.oracles.rows import RowSink, emit_rows, row_segment
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

UNREAD = "pooler."
"""Weights of an encoder that no checkpoint depends on."""
TORCH_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


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
            recorder = Recorder(self.table, self.dims, request, target)
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
            [to_numpy(result[0].float()) for result, _ in self._forwards(run)]
            for run in self._runs(plan_segments(request))
        ]

    def weights(self) -> Iterator[tuple[str, Array]]:
        """Yield the loaded parameters under their transformers names."""
        for key, tensor in self.model.state_dict().items():
            yield key, to_numpy(tensor)

    def module_weights(self) -> dict[tuple[str, str], Array]:
        """Return the loaded weights by (checkpoint id, operand) of the module that makes it.

        Stored as the model computes with them: [out, in] for a linear layer, experts first.
        """
        found: dict[tuple[str, str], Array] = {}
        for name, point in self.table.model.items():
            weights_of(found, name, submodule(self.model, point.module), point, self.dims)
        for index, layer in enumerate(self._layers()):
            for name, point in self.table.layer.items():
                key = f"layer.{index}.{name}"
                weights_of(found, key, submodule(layer, point.module), point, self.dims)
            experts = submodule(layer, self.table.experts)
            if self.table.experts_function and experts is not None:
                gate, up = experts.gate_up_proj.chunk(2, dim=1)
                parts = {"gate": gate, "up": up, "expert_output": experts.down_proj}
                for name, value in self.table.experts_function.items():
                    if value.value in parts:
                        key = f"layer.{index}.{name}"
                        found[key, "weight"] = to_numpy(parts[value.value])
        return found

    def _layers(self) -> list[Any]:
        """Return the module of every layer; one that is several layers in turn is repeated."""
        modules = list(submodule(self.model, self.table.layers))
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
                facts={
                    "layers": self.config.num_hidden_layers,
                    **{k: size for k, size in self.dims.items() if k not in self.table.uneven},
                },
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
    model, loading = kind.from_pretrained(folder, output_loading_info=True, **arguments)
    drawn = sorted(name for name in loading["missing_keys"] if not name.startswith(UNREAD))
    if drawn:
        raise _drawn(path, drawn, type(model).__name__)
    pin(model)
    return model


def _drawn(path: Path, names: list[str], kind: str) -> CkeError:
    """Return the error of weights that a file does not give, so that they would be random."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return CkeError(
        Diagnostic(
            code="CKE718",
            file=path.name,
            message=f"transformers reads the file as `{kind}` and draws `{names[0]}`{more} at "
            "random: expected every weight in the file",
            notes=(
                Note(
                    "give the model's own folder with --oracle-model, or use another oracle",
                    label="help",
                ),
            ),
        )
    )


def pin(model: Any) -> None:
    """Set eval mode and the eager attention and experts, whose arithmetic is the published one."""
    model.eval()
    model.set_attn_implementation("eager")
    if type(model)._can_set_experts_implementation():
        model.set_experts_implementation("eager")
