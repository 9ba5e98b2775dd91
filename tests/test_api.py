"""The Python surface: light to import, builds on demand, keeps what it built."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import cke
from cke.api.build import package_key
from cke.errors import CkeError
from cke.errors.files import cache_folder
from cke.runtime.package import MANIFEST
from cke.runtime.weights.files import open_model

TOKENS = np.array([[5, 6, 7, 8], [9, 10, 11, 12]], np.int32)


def test_importing_cke_imports_no_jax(repository):
    code = "import sys, cke; sys.exit('jax' in sys.modules or 'numpy' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(repository / "src")}
    found = subprocess.run([sys.executable, "-c", code], env=environment, check=False)
    assert found.returncode == 0


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'cke' has no attribute 'lode'"):
        cke.lode  # noqa: B018


def test_an_unknown_dtype_is_an_error(tmp_path):
    with pytest.raises(CkeError) as caught:
        cke.load(tmp_path, dtype="float8")
    assert str(caught.value) == (
        "error[CKE608]: `dtype` expects float32 | bfloat16, got `float8`\n"
        "  help: quantised and f16 files are read into the run dtype"
    )


def test_logits_are_those_of_every_position(tiny_model):
    model = cke.load(tiny_model("llama"), driver="per_layer")
    found = model.logits(TOKENS)
    assert found.shape == (2, 4, 96)
    assert found.dtype == np.float32
    assert np.array_equal(found, model.logits(TOKENS.tolist()))


def test_generate_gives_a_list_per_row_and_stops(tiny_model):
    model = cke.load(tiny_model("llama"), driver="per_layer")
    free = model.generate(TOKENS, 8, stops=())
    assert [len(row) for row in free] == [8, 8]
    stop = free[0][3]
    stopped = model.generate(TOKENS, 8, stops=(stop,))
    assert stopped[0] == free[0][: free[0].index(stop) + 1]


def test_a_package_is_built_once(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setenv("CKE_CACHE_DIR", str(tmp_path / "cache"))
    folder = tiny_model("llama")
    said: list[str] = []
    files = open_model(folder)
    kept = cache_folder("packages", package_key(files, None, "bf16", ()))
    assert not kept.exists()
    cke.load(folder, dtype="bfloat16", progress=said.append)
    assert said == [f"building `llama` for {folder.name} in bf16"]
    assert (kept / MANIFEST).is_file()
    cke.load(folder, dtype="bfloat16", progress=said.append)
    assert len(said) == 1


def test_a_key_covers_circuit_config_dtype_and_captures(tiny_model, tmp_path):
    files = open_model(tiny_model("llama"))
    other = open_model(tiny_model("llama", rms_norm_eps=1e-3))
    own = tmp_path / "own.circuit"
    own.write_text("circuit own@1 from llama@1")
    keys = {
        package_key(files, None, "f32", ()),
        package_key(files, None, "bf16", ()),
        package_key(files, None, "f32", ("*",)),
        package_key(files, "llama", "f32", ()),
        package_key(other, None, "f32", ()),
        package_key(files, own, "f32", ()),
    }
    own.write_text("circuit own@2 from llama@1")
    keys.add(package_key(files, own, "f32", ()))
    assert len(keys) == 7


def test_an_interrupted_build_leaves_nothing(tiny_model, monkeypatch):
    folder = tiny_model("llama", rms_norm_eps=2e-3)
    files = open_model(folder)
    kept = cache_folder("packages", package_key(files, None, "f32", ()))

    def interrupt(path, data):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.write_bytes", interrupt)
        with pytest.raises(KeyboardInterrupt):
            cke.load(folder)
    assert not kept.exists()
    assert [path for path in kept.parent.iterdir() if path.name.startswith(f".{kept.name}")] == []
    cke.load(folder)
    assert (kept / MANIFEST).is_file()


def test_builds_at_once_are_safe(tiny_model, switching_threads):
    folder = tiny_model("llama", rms_norm_eps=3e-3)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: cke.load(folder, driver="per_layer"), range(3)))
    first, *others = [model.logits(TOKENS) for model in found]
    assert len(others) == 2
    assert all(np.array_equal(first, other) for other in others)


def test_a_circuit_of_ones_own_runs_the_same_way(tiny_model, tmp_path):
    own = tmp_path / "mine.circuit"
    own.write_text('circuit mine@1 from llama@1 "Llama by another name"\n')
    folder = tiny_model("llama")
    mine = cke.load(folder, own, driver="per_layer")
    assert mine.manifest.circuit == "mine"
    assert np.array_equal(mine.logits(TOKENS), cke.load(folder, driver="per_layer").logits(TOKENS))


def test_a_context_too_long_is_an_error(tiny_model):
    model = cke.load(tiny_model("llama", max_position_embeddings=8), driver="per_layer")
    with pytest.raises(CkeError) as caught:
        model.generate(TOKENS, 6)
    assert str(caught.value) == (
        "error[CKE603]: expected at most 8 positions, got 9\n"
        "  help: shorten the prompt, or ask for fewer new tokens"
    )


@pytest.mark.parametrize("family", ["llama", "qwen3", "mixtral"])
def test_a_gguf_file_with_the_width_of_values_speaks_as_its_folder(family, tiny_model, tmp_path):
    from cke.oracles.gguf_writer import write_gguf

    folder = tiny_model(family)
    file = write_gguf(folder, tmp_path / "m.gguf")
    tokens = [[1, 2, 3, 4]]
    expected = cke.load(folder).logits(tokens)
    assert np.abs(cke.load(file).logits(tokens) - expected).max() <= 1e-5 * np.abs(expected).max()
