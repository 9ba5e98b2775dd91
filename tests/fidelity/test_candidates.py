"""Candidates: formats against their definitions, folders, digests, and what loading records."""

import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from cke.api.fidelity import open_subject
from cke.errors import CkeError
from cke.fidelity.candidate_formats import FORMATS, format_named
from cke.fidelity.candidates import DESCRIPTION, SHARD, load_candidate
from cke.fidelity.digests import weights_sha256
from cke.runtime.weights.files import open_model
from tests.fidelity.conftest import Tiny

BOUNDS = {
    "int8": 0.006,
    "int4": 0.11,
    "fp8_e4m3": 0.04,
    "fp8_e5m2": 0.08,
    "q4_0": 0.12,
    "q4_1": 0.11,
    "q5_0": 0.06,
    "q5_1": 0.05,
    "q8_0": 0.007,
    "mxfp4": 0.2,
    "nvfp4": 0.14,
}
"""The root mean square error of each format on normal weights, as a share of theirs."""


def rows(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(8, 128)).astype(np.float32)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_format_keeps_the_values_to_its_precision(name: str) -> None:
    chosen, values = format_named(name), rows()
    parts = chosen.encode(values, chosen.group)
    back = chosen.decode(parts)
    assert set(parts) == set(chosen.parameters)
    assert back.shape == values.shape
    assert back.dtype == np.float32
    error = float(np.sqrt(np.mean((back - values) ** 2)) / np.sqrt(np.mean(values**2)))
    assert 0 < error < BOUNDS[name]
    again = chosen.decode(chosen.encode(back, chosen.group))
    assert float(np.abs(again - back).max()) < 0.5 * float(np.abs(back - values).max())
    assert not format_named(name).decode(chosen.encode(np.zeros_like(values), chosen.group)).any()


def test_formats_order_as_their_precision_does() -> None:
    def error(name: str) -> float:
        chosen = format_named(name)
        return float(np.mean((chosen.decode(chosen.encode(rows(), chosen.group)) - rows()) ** 2))

    assert error("int8") < error("fp8_e4m3") < error("fp8_e5m2") < error("int4")
    assert error("q8_0") < error("q5_0") < error("q4_0")
    assert error("nvfp4") < error("mxfp4")


def test_int4_codes_and_scales_are_those_of_the_definition() -> None:
    values = np.zeros((1, 32), np.float32)
    values[0, :4] = [7.0, -3.0, 1.4, 0.6]
    parts = FORMATS["int4"].encode(values, 32)
    assert parts["scales"].tolist() == [[1.0]]
    assert parts["codes"][0, :4].tolist() == [7, -3, 1, 1]


def test_mxfp4_scale_is_a_power_of_two_and_a_code_an_e2m1() -> None:
    values = np.full((1, 32), 3.0, np.float32)
    parts = FORMATS["mxfp4"].encode(values, 32)
    assert float(parts["scales"].view(ml_dtypes.float8_e8m0fnu)[0, 0]) == 0.5
    assert float(parts["codes"].view(ml_dtypes.float4_e2m1fn)[0, 0]) == 6.0


def test_unknown_format_is_refused() -> None:
    with pytest.raises(CkeError, match=r"error\[CKE878\]: expected a format of int8, .*got `int3`"):
        format_named("int3")


def test_row_that_groups_do_not_fill_is_refused() -> None:
    with pytest.raises(CkeError, match="expected rows of a multiple of 32 weights, got 48"):
        FORMATS["int8"].encode(np.ones((2, 48), np.float32), 32)


@pytest.mark.contract("LAW-17.2", "LAW-17.15")
def test_loading_records_every_linear_layer(tiny: Tiny) -> None:
    found = load_candidate(tiny.root / "int8").inspection
    names = [layer["name"] for layer in found["layers"]]
    assert found["walked"] is True
    assert found["quantized"] is True
    assert found["scored_layers"] == len(names) == 2 * 7 + 1
    assert sum(layer["format"] == "int8" for layer in found["layers"]) == 14
    assert found["substitutions"] == []


@pytest.mark.contract("LAW-17.4", "LAW-17.5")
def test_shared_scale_of_fused_layers_is_a_substitution_with_its_spread(tiny: Tiny) -> None:
    folder = tiny.root / "nvfp4"
    stored = load_file(folder / SHARD)
    scales = {k.split("|")[0]: float(v[0]) for k, v in stored.items() if k.endswith("global_scale")}
    found = load_candidate(folder, fused_scale="max").inspection
    assert load_candidate(folder).inspection["substitutions"] == []
    (entry,) = found["substitutions"]
    fused = [layer["name"] for layer in found["layers"] if not layer["as_exported"]]
    spreads = []
    for layer in range(2):
        for kind in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")):
            group = [scales[n] for n in fused if f".{layer}." in n and n.split(".")[-2] in kind]
            spreads.append(max(group) / min(group))
    assert entry["affected_layers"] == len(fused) == 10
    assert entry["worst_spread"] == pytest.approx(max(spreads))


@pytest.mark.contract("LAW-16.3", "LAW-16.8")
def test_digest_covers_names_headers_and_every_byte(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    save_file({"a": np.arange(4, dtype=np.float32)}, folder / "a.safetensors")
    save_file({"b": np.arange(4, dtype=np.float32)}, folder / "b.safetensors")

    def digest(path: Path) -> str:
        return weights_sha256(path.glob("*.safetensors"))

    known = digest(folder)
    copied = Path(shutil.copytree(folder, tmp_path / "two"))
    assert digest(copied) == known
    content = copied.joinpath("a.safetensors").read_bytes()
    for at in (0, 20, len(content) - 1):
        changed = bytearray(content)
        changed[at] ^= 1
        copied.joinpath("a.safetensors").write_bytes(bytes(changed))
        assert digest(copied) != known
    copied.joinpath("a.safetensors").write_bytes(content)
    copied.joinpath("b.safetensors").rename(copied / "c.safetensors")
    assert digest(copied) != known
    copied.joinpath("c.safetensors").unlink()
    copied.joinpath("b.safetensors").symlink_to(folder / "b.safetensors")
    assert digest(copied) == known


@pytest.mark.contract("LAW-16.8")
def test_bytes_that_move_between_shards_change_the_digest(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    digests = set()
    for parts in ((b"xy", b"z"), (b"x", b"yz"), (b"", b"xyz")):
        for path, part in zip(paths, parts, strict=True):
            path.write_bytes(part)
        digests.add(weights_sha256(paths))
    assert len(digests) == 3


@pytest.mark.contract("LAW-16.8")
def test_index_that_names_an_absent_shard_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny.model, tmp_path / "model"))
    index = '{"weight_map": {"model.norm.weight": "model-00009-of-00009.safetensors"}}'
    folder.joinpath("model.safetensors").unlink()
    folder.joinpath("model.safetensors.index.json").write_text(index)
    with pytest.raises(CkeError):
        open_model(folder)


@pytest.mark.contract("LAW-16.2")
def test_swapped_weights_are_seen_by_their_digest(tiny: Tiny, tmp_path: Path) -> None:
    folders = [Path(shutil.copytree(tiny.root / n, tmp_path / n)) for n in ("int8", "nvfp4")]
    before = [load_candidate(folder).identity.weights_sha256 for folder in folders]
    swapped = tmp_path / "swap"
    for name in (SHARD, DESCRIPTION):
        folders[0].joinpath(name).rename(swapped)
        folders[1].joinpath(name).rename(folders[0] / name)
        swapped.rename(folders[1] / name)
    after = [load_candidate(folder).identity.weights_sha256 for folder in folders]
    assert after == before[::-1]
    assert before[0] != before[1]


@pytest.mark.contract("LAW-16.9")
def test_every_byte_of_a_gguf_file_is_digested(tmp_path: Path) -> None:
    part = tmp_path / "model-00001-of-00002.gguf"
    other = tmp_path / "model-00002-of-00002.gguf"
    part.write_bytes(b"GGUF" + b"\0" * 100)
    other.write_bytes(b"GGUF" + b"\1" * 100)
    known = weights_sha256([part, other])
    other.write_bytes(b"GGUF" + b"\1" * 99 + b"\2")
    assert weights_sha256([part, other]) != known


def test_candidate_without_a_weight_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny.root / "int8", tmp_path / "int8"))
    stored: dict[str, Any] = load_file(folder / SHARD)
    name = min(key.split("|")[0] for key in stored)
    save_file({k: v for k, v in stored.items() if not k.startswith(f"{name}|")}, folder / SHARD)
    with pytest.raises(CkeError, match=r"error\[CKE878\]: the candidate has no weight"):
        open_subject(folder)
