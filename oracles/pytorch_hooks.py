"""Hooks of one capture of a transformers model: modules, the attention, the experts, the cache.

The model's own eager attention computes; the registered function only records around it. Scores
are recomputed from q and k, because no eager attention of transformers returns them; expert
results likewise. Both say so in `derivation`.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import transformers

from cke.oracles.base import Sink
from cke.oracles.layout import axes_rank, product_size, unpack_axes
from cke.oracles.points import FunctionPoint, ModulePoint, Table
from cke.oracles.pytorch_modules import submodule, to_numpy
from cke.runtime.records import record_of
from cke.runtime.schedule import CaptureRequest
from cke.schemas.trace import Segment

RECORDING = "cke_recording"
SCORES = "recomputed from q and k: scale, then soft cap, before the mask"
EXPERTS = "recomputed for the chosen experts from the routed input"


class Recorder:
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
        layers = submodule(model, self.table.layers)
        before = model.config._attn_implementation
        experts = model.get_experts_implementation() if self.table.experts_function else None
        try:
            for name, point in self.table.model.items():
                if point.module:
                    handles.append(self._hook(submodule(model, point.module), name, None, point))
            for index, layer in enumerate(layers):
                handles.append(layer.register_forward_pre_hook(self._entered))
                for name, point in self.table.layer.items():
                    module = submodule(layer, point.module)
                    if module is not None and submodule(layer, point.when) is not None:
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
        self._keep(name, layer, self._part(value, point), point.axes, role, version=point.version)

    def _keep(
        self,
        name: str,
        layer: int | None,
        value: torch.Tensor,
        axes: str,
        role: str | None = None,
        derivation: str | None = None,
        version: int = 1,
    ) -> None:
        if self.segment is None or not self.request.wants(name, layer):
            return
        sizes = {
            **self.dims,
            "B": len(self.segment.tokens),
            "T": len(self.segment.tokens[0]),
        }
        names, shape = unpack_axes(axes, tuple(value.shape), sizes)
        array = to_numpy(value).reshape(shape)
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
            version=version,
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
                shown = values[point.value]
                self._keep(name, layer, shown, point.axes, None, derivation, point.version)
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


def _register(attention: Callable[..., Any], experts: Callable[..., Any]) -> None:
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask

    transformers.AttentionInterface.register(RECORDING, attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(RECORDING, eager_mask)
    ALL_EXPERTS_FUNCTIONS.register(RECORDING, experts)
