"""Model folders: one file, shards, cache snapshots, pickles on request; every refusal's text."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from cke.errors import CkeError, MissingInputError
from cke.runtime.weights import open_model
from cke.runtime.weights.dequantise import dequantise
from cke.runtime.weights.files import generation_config
from tests.runtime.weights_files import sound_gguf, sound_safetensors, write_folder

INDEX = "model.safetensors.index.json"
TOGETHER = "\n  help: index and shards belong together: fetch them all again"
A, B = save({"a": np.ones(2, np.float32)}), save({"b": np.ones(3, np.float32)})


def refusal(path: Path, **options: bool) -> str:
    with pytest.raises(CkeError) as caught:
        open_model(path, **options)
    return str(caught.value)


def shards(tmp_path: Path, weight_map: Any, **files: bytes) -> Path:
    named = {f"{name}.safetensors": raw for name, raw in files.items()}
    return write_folder(tmp_path / "m", {INDEX: {"weight_map": weight_map}, **named})


def test_a_folder_with_one_file_is_opened(tmp_path: Path) -> None:
    model = open_model(write_folder(tmp_path / "m", {"model.safetensors": sound_safetensors()}))
    assert (model.format, model.name, sorted(model.located)) == ("hf", "m", ["a", "b"])
    assert model.config["hidden_size"] == 4
    assert generation_config(model) == {}


def test_shards_are_one_model_in_the_order_of_the_index(tmp_path: Path) -> None:
    path = shards(tmp_path, {"b": "2.safetensors", "a": "1.safetensors"}, **{"1": A, "2": B})
    assert list(open_model(path).located) == ["b", "a"]


def test_a_cache_snapshot_of_links_is_opened(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "m" / "blobs", tmp_path / "m" / "snapshots" / "0a1b"
    write_folder(tmp_path / "m", {}), blobs.mkdir(), snapshot.mkdir(parents=True)
    (tmp_path / "m" / "config.json").rename(blobs / "11")
    (blobs / "22").write_bytes(sound_safetensors())
    os.symlink("../../blobs/11", snapshot / "config.json")
    os.symlink("../../blobs/22", snapshot / "model.safetensors")
    assert sorted(open_model(snapshot).located) == ["a", "b"]
    assert refusal(tmp_path / "m") == (
        "m: error[CKE400]: expected `config.json` in the folder, got none\n"
        "  help: give the path of the snapshot, `snapshots/0a1b`"
    )


def test_no_model_is_missing_input(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("hello")
    with pytest.raises(MissingInputError) as caught:
        open_model(tmp_path / "none")
    expected = "error[CKE400]: expected a model folder with `config.json`, or a GGUF file, got"
    help_text = "\n  help: give the path of the folder that holds `config.json`"
    assert str(caught.value) == f"none: {expected} nothing{help_text}"
    assert refusal(tmp_path / "x.txt") == (
        f"x.txt: {expected} a file that begins otherwise in `x.txt`{help_text}"
    )


def test_a_folder_without_a_config_names_what_it_holds(tmp_path: Path) -> None:
    assert refusal(tmp_path) == (
        f"{tmp_path.name}: error[CKE400]: expected `config.json` in the folder, got none\n"
        "  help: add the model's `config.json`"
    )
    (tmp_path / "x.gguf").write_bytes(sound_gguf())
    assert refusal(tmp_path).endswith("help: give the path of `x.gguf`")


def test_a_folder_without_weights_is_missing_input(tmp_path: Path) -> None:
    assert refusal(write_folder(tmp_path / "m", {})) == (
        "m: error[CKE400]: expected `model.safetensors` or `model.safetensors.index.json`, "
        "got none\n  help: add the weights files of the model to the folder"
    )
    several = {"x.safetensors": A, "y.safetensors": B}
    assert refusal(write_folder(tmp_path / "m", several)).startswith(
        "m: error[CKE400]: expected `model.safetensors` or `model.safetensors.index.json`, got "
        "2 files without an index (`x.safetensors`, `y.safetensors`, …)"
    )


@pytest.mark.parametrize(("config", "got"), [([], "an array"), (3, "`3`"), (None, "`None`")])
def test_a_config_is_an_object(config: Any, got: str, tmp_path: Path) -> None:
    assert refusal(write_folder(tmp_path / "m", {"config.json": config})) == (
        f"config.json: `$`: error[CKE402]: expected a JSON object, got {got}\n"
        "  help: copy the file from the model's source again"
    )


def test_a_config_that_is_no_json_names_the_place(tmp_path: Path) -> None:
    assert refusal(write_folder(tmp_path / "m", {"config.json": b'{"a": 1, "a": 2}'})) == (
        "config.json: `$.a`: error[CKE802]: the key stands twice"
    )


@pytest.mark.parametrize(
    ("weight_map", "path", "message"),
    [
        (["a"], "$.weight_map", "expected an object of tensor key to file name"),
        ({"a": 1}, "$.weight_map", "expected an object of tensor key to file name"),
        (
            {"a": "../1.safetensors"},
            "$.weight_map",
            "expected the name of a file beside it, got `../1.safetensors`",
        ),
        (
            {"a": "3.safetensors"},
            "$.weight_map",
            "expected a file `3.safetensors` beside it, got none",
        ),
        (
            {"a": "1.safetensors", "c": "1.safetensors"},
            "$.weight_map.c",
            "expected the tensor in `1.safetensors`, got none",
        ),
        (
            {"a": "1.safetensors", "b": "1.safetensors", "c": "2.safetensors"},
            "$.weight_map.b",
            "expected `2.safetensors`, which holds the tensor, got `1.safetensors`",
        ),
        (
            {"b": "2.safetensors", "c": "1.safetensors"},
            "$.weight_map.a",
            "expected `1.safetensors`, which holds the tensor, got none",
        ),
    ],
    ids=["no object", "no name", "leaves the folder", "no file", "no tensor", "other file", "left"],
)
def test_an_index_that_lies_is_refused(
    weight_map: Any, path: str, message: str, tmp_path: Path
) -> None:
    folder = shards(tmp_path, weight_map, **{"1": A, "2": B})
    assert refusal(folder) == f"{INDEX}: `{path}`: error[CKE404]: {message}{TOGETHER}"


def test_a_fifo_is_no_weights_file(tmp_path: Path) -> None:
    write_folder(tmp_path / "m", {})
    os.mkfifo(tmp_path / "m" / "model.safetensors")
    assert "got 1 files" not in refusal(tmp_path / "m")
    assert "CKE802]: expected a regular file" in refusal(tmp_path / "m")


def pickled(tmp_path: Path, value: Any) -> Path:
    torch = pytest.importorskip("torch")
    folder = write_folder(tmp_path / "m", {})
    torch.save(value, folder / "pytorch_model.bin")
    return folder


@pytest.mark.oracle_torch
def test_pickled_weights_are_refused_unless_asked_for(tmp_path: Path) -> None:
    import torch

    value = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1.5], dtype=torch.bfloat16)}
    folder = pickled(tmp_path, value)
    assert refusal(folder) == (
        "m: error[CKE403]: expected `model.safetensors` or `model.safetensors.index.json`, got "
        "pickled weights in `pytorch_model.bin`\n"
        "  note: a pickle file can run code when it is read\n"
        "  help: save the model as safetensors, or allow pickled weights on purpose: "
        "`--allow-pickle`, or `allow_pickle=True`"
    )
    model = open_model(folder, allow_pickle=True)
    f32 = np.dtype(np.float32)
    assert dequantise(model.located["a"], f32).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert dequantise(model.located["b"], f32).tolist() == [1.5]
    assert model.located["b"].info.storage == "BF16"


class _Attack:
    def __reduce__(self) -> Any:
        return os.mkdir, ("attacked",)


@pytest.mark.oracle_torch
def test_a_pickle_that_runs_code_does_not_run_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = pickled(tmp_path, {"a": _Attack()})
    monkeypatch.chdir(tmp_path)
    assert refusal(folder, allow_pickle=True).startswith(
        "pytorch_model.bin: error[CKE406]: expected plain pickled tensors: Weights only load failed"
    )
    assert not (tmp_path / "attacked").exists()


@pytest.mark.oracle_torch
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1], "pytorch_model.bin: error[CKE406]: expected a dict of tensors, got a list"),
        ({"a": 3}, "pytorch_model.bin: `a`: error[CKE406]: expected a dense tensor, got a int"),
    ],
)
def test_a_pickle_of_other_values_is_refused(value: Any, message: str, tmp_path: Path) -> None:
    expected = message + "\n  help: save the model again as safetensors"
    assert refusal(pickled(tmp_path, value), allow_pickle=True) == expected


@pytest.mark.oracle_torch
@pytest.mark.parametrize("raw", [b"", b"\x80\x02.", b"PK\x03\x04" + bytes(40), b"hello"])
def test_a_pickle_that_is_none_is_refused(raw: bytes, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", {"pytorch_model.bin": raw})
    assert "error[CKE406]: expected plain pickled tensors" in refusal(folder, allow_pickle=True)
