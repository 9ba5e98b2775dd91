"""Packets of running models: analysed, and planted faults show in the numbers alone."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cke.api.attention_calls import attention_calls
from cke.api.model import Model, load
from cke.api.packet import ExportRequest, export_attention_packet, export_step, weights_sha256
from cke.attention_packet.analyze import Outcome, analyze
from cke.attention_packet.exporter import Exported
from cke.errors import CkeError
from tests.models import TinyModel

contract = pytest.mark.contract
pytestmark = pytest.mark.oracle_torch
PROMPT = (3, 17, 29, 5, 8, 41, 2, 9, 33)
GLOBAL_LAYER = 2


@pytest.fixture(scope="module")
def gemma3(tiny_model: TinyModel) -> Path:
    """A tiny Gemma 3 whose third layer is global, with head width 256."""
    return tiny_model("gemma3", head_dim=256)


@pytest.fixture(scope="module")
def request_of_global_layer() -> ExportRequest:
    return ExportRequest(tokens=PROMPT, layer=GLOBAL_LAYER, step=2)


def relative(found: Outcome) -> float:
    assert found.analysis.original_query_reference is not None, found.analysis
    value = found.analysis.original_query_reference.comparison.global_.relative_l2
    assert value is not None
    return value


@contract("PKT-66")
def test_packet_of_a_global_gemma3_layer_is_explained_by_fp32_arithmetic(
    gemma3: Path, request_of_global_layer: ExportRequest, tmp_path: Path
) -> None:
    out, mirror = tmp_path / "packet", tmp_path / "mirror"
    found = export_attention_packet(gemma3, request_of_global_layer, out, mirror)
    assert found.status == "captured"
    result = analyze(out / "packet.json", mirror / "mirror.json")
    assert (result.exit_code, result.analysis.status) == (0, "analyzed"), result.analysis
    geometry = result.analysis.geometry
    assert geometry is not None
    assert (geometry.head_dimension, geometry.tokens) == (256, len(PROMPT) + 3)
    assert relative(result) < 2e-6
    assert result.analysis.additions is not None
    check = result.analysis.additions.incoming_mirror
    assert check is not None
    assert (check.token_start, check.token_end) == (0, geometry.tokens)
    assert check.stored_keys.mismatched_native_elements == 0
    assert check.stored_values.mismatched_native_elements == 0
    assert not (tmp_path / "packet/packet-run.json").exists()
    assert (tmp_path / "packet-run.json").exists()


@contract("PKT-69")
def test_sliding_gemma3_layer_is_refused(gemma3: Path, tmp_path: Path) -> None:
    request = ExportRequest(tokens=PROMPT, layer=0)
    with pytest.raises(CkeError, match=r"CKE847.*expected a causal layer without a window, got"):
        export_attention_packet(gemma3, request, tmp_path / "packet")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("layer", [-1, 4, 99])
def test_layer_that_the_model_has_not_is_refused(layer: int, gemma3: Path, tmp_path: Path) -> None:
    request = ExportRequest(tokens=PROMPT, layer=layer)
    with pytest.raises(CkeError, match="expected a layer from 0 to 3"):
        export_attention_packet(gemma3, request, tmp_path / "packet")


def test_forced_tokens_beyond_the_step_are_refused(gemma3: Path, tmp_path: Path) -> None:
    request = ExportRequest(tokens=PROMPT, layer=GLOBAL_LAYER, step=1, forced=(1, 2, 3))
    with pytest.raises(CkeError, match="expected at most 2 forced tokens for step 1, got 3"):
        export_attention_packet(gemma3, request, tmp_path / "packet")


@pytest.fixture
def models(gemma3: Path) -> Iterator[tuple[Model, Model]]:
    """The production model and the one that captures, not yet compiled.

    Programs are traced anew, and none with a planted fault is left: JAX keeps traces by function,
    and models of one package share its functions.
    """
    jax.clear_caches()
    production = load(gemma3, driver="per_layer")
    calls = attention_calls(production.manifest, GLOBAL_LAYER)
    yield production, load(gemma3, driver="per_layer", capture=calls.captures)
    jax.clear_caches()


def plant(
    models: tuple[Model, Model], kernel: str, fault: Callable[..., Any], monkeypatch: Any
) -> None:
    """Put a fault in place of a kernel in the decode programs of both models."""
    for module in {
        id(m): m for m in (model.package.modules["decode"] for model in models)
    }.values():
        real = getattr(module, kernel)
        monkeypatch.setattr(module, kernel, lambda *a, real=real, **k: fault(real, *a, **k))


def export(models: tuple[Model, Model], request: ExportRequest, out: Path) -> Exported:
    calls = attention_calls(models[0].manifest, request.layer)
    return export_step(*models, calls, request, out)


def transposed_keys(real, q, k, v, *rest, **options):
    swapped = jnp.swapaxes(k, 1, 3).reshape(k.shape)
    return real(q, swapped, v, *rest, **options)


def interleaved_map(real, q, k, v, *rest, **options):
    return real(q, k, v, *rest, **(options | {"head_map": "interleaved"}))


def dropped_last_token(real, *arguments, positions, key_positions, **options):
    hidden = jnp.where(key_positions == positions, -1, key_positions)
    return real(*arguments, positions=positions, key_positions=hidden, **options)


def wrong_scale(real, *arguments, **options):
    return real(*arguments, **(options | {"scale": options["scale"] * 3}))


FAULTS = {
    "transposed keys": transposed_keys,
    "interleaved head map": interleaved_map,
    "dropped last token": dropped_last_token,
    "wrong scale": wrong_scale,
}


@pytest.mark.slow
@contract("PKT-59")
@contract("PKT-66")
@pytest.mark.parametrize("name", sorted(FAULTS))
def test_fault_of_the_running_kernel_shows_in_the_numbers_and_not_in_the_exit(
    name: str,
    models: tuple[Model, Model],
    request_of_global_layer: ExportRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(models, "sdpa", FAULTS[name], monkeypatch)
    assert export(models, request_of_global_layer, tmp_path / "packet").status == "captured"
    result = analyze(tmp_path / "packet/packet.json")
    assert (result.exit_code, result.analysis.status) == (0, "analyzed")
    assert relative(result) > 1e-3


def changed_append(real, slot, positions, key, value, **options):
    return real(slot, positions, key + 0.5, value, **options)


def off_by_one_append(real, slot, positions, key, value, **options):
    """Keys lie one row late under positions that are right."""
    new, keys, *rest = real(slot, positions, key, value, **options)
    return ({**new, "k": jnp.roll(new["k"], 1, axis=1)}, jnp.roll(keys, 1, axis=1), *rest)


@contract("PKT-52")
@contract("PKT-66")
@pytest.mark.parametrize(
    "fault", [changed_append, pytest.param(off_by_one_append, marks=pytest.mark.slow)]
)
def test_corrupted_append_shows_in_the_last_row_because_rows_come_from_the_call(
    fault: Callable[..., Any],
    models: tuple[Model, Model],
    request_of_global_layer: ExportRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(models, "append", fault, monkeypatch)
    assert export(models, request_of_global_layer, tmp_path / "packet").status == "captured"
    result = analyze(tmp_path / "packet/packet.json")
    assert (result.exit_code, result.analysis.status) == (0, "inconclusive")
    rows = result.analysis.last_row_consistency
    assert rows is not None
    assert rows.stored_keys.mismatched_native_elements == rows.stored_keys.compared_native_elements
    assert rows.stored_values.mismatched_native_elements == 0
    assert relative(result) < 2e-6


def late_append(real, slot, positions, key, value, **options):
    """Each row goes where the next one belongs: the row before it is written again."""
    late = slot | {"count": slot["count"] - 1}
    new, *rest = real(late, positions, key, value, **options)
    return ({**new, "count": slot["count"] + 1}, *rest)


@pytest.mark.slow
@contract("PKT-66")
def test_append_that_loses_a_position_gives_no_packet(
    models: tuple[Model, Model],
    request_of_global_layer: ExportRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(models, "append", late_append, monkeypatch)
    found = export(models, request_of_global_layer, tmp_path / "packet")
    assert found.status == "inconclusive"
    assert not (tmp_path / "packet").exists()


@pytest.mark.slow
def test_programs_that_disagree_give_no_packet(
    models: tuple[Model, Model],
    request_of_global_layer: ExportRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    production, evidence = models
    plant((production, production), "sdpa", wrong_scale, monkeypatch)
    found = export((production, evidence), request_of_global_layer, tmp_path / "packet")
    assert found.status == "inconclusive"
    assert list(tmp_path.iterdir()) == []


@contract("PKT-66")
def test_artifact_hash_is_that_of_the_loaded_weights(models: tuple[Model, Model]) -> None:
    production, evidence = models
    before = weights_sha256(production)
    assert before == weights_sha256(evidence)
    step, weights = next(iter(production.weights["decode"].items()))
    name, array = next(iter(weights.items()))
    production.weights["decode"][step] = {**weights, name: array.at[(0,) * array.ndim].add(1)}
    assert weights_sha256(production) != before


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_packet_of_each_run_dtype_is_analysed(dtype: str, gemma3: Path, tmp_path: Path) -> None:
    request = ExportRequest(tokens=PROMPT, layer=GLOBAL_LAYER, dtype=dtype)
    assert export_attention_packet(gemma3, request, tmp_path / "packet").status == "captured"
    result = analyze(tmp_path / "packet/packet.json")
    assert result.analysis.status == "analyzed", result.analysis
    assert result.analysis.geometry is not None
    assert set(result.analysis.geometry.dtypes.values()) == {dtype}
    assert relative(result) < (2e-6 if dtype == "float32" else 2.0**-7)


@pytest.mark.real_model
@pytest.mark.slow
@contract("PKT-66")
@pytest.mark.parametrize("layer", [0, 29])
def test_packet_of_smollm2_is_explained_by_fp32_arithmetic(
    layer: int, smollm2_gguf: Path, tmp_path: Path
) -> None:
    request = ExportRequest(tokens=(504, 3575, 282, 4649, 314), layer=layer, step=3)
    found = export_attention_packet(smollm2_gguf, request, tmp_path / "packet")
    assert found.status == "captured"
    result = analyze(tmp_path / "packet/packet.json")
    assert result.analysis.status == "analyzed", result.analysis
    assert relative(result) < 2e-6


@pytest.mark.slow
def test_export_is_the_same_each_time(gemma3: Path, tmp_path: Path) -> None:
    request = ExportRequest(tokens=PROMPT, layer=GLOBAL_LAYER)
    hashes = [
        export_attention_packet(gemma3, request, tmp_path / name).packet_sha256
        for name in ("first", "second")
    ]
    assert hashes[0] == hashes[1]
    assert np.all([name is not None for name in hashes])
