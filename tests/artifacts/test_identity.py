"""The identity of a run names the path that ran: whatever is changed of it, a fingerprint moves."""

from types import SimpleNamespace

import msgspec
import pytest

from cke.artifacts.execute import execute
from cke.artifacts.fingerprints import LIS_GREEDY, Hasher
from cke.artifacts.refusal import ArtifactError
from cke.artifacts.seeded import SeededEngine
from tests.artifacts.documents import PLAIN, run

OTHER = Hasher().add("other").fingerprint()


def fingerprints(manifest):
    """Every fingerprint of a manifest by its part."""
    parts = ("binary", "model", "config", "input", "runtime", "backend")
    return {name: getattr(manifest, name).fingerprint for name in parts}


def changed(request, facts):
    """The parts whose fingerprint moves with a change of the request and of the facts."""
    engine = SeededEngine()
    engine.facts = msgspec.structs.replace(engine.facts, **facts)
    found = execute(engine, msgspec.structs.replace(PLAIN, **request)).report.manifest
    before, after = fingerprints(run(PLAIN).report.manifest), fingerprints(found)
    return {name for name in before if before[name] != after[name]}


@pytest.mark.contract("LIS-21", "LIS-8", "LIS-9", "LIS-153", "LIS-160")
@pytest.mark.parametrize(
    ("request_change", "facts_change", "moved"),
    [
        ({}, {"binary": OTHER}, {"binary"}),
        ({}, {"model": OTHER}, {"model"}),
        ({}, {"config": OTHER}, {"config"}),
        ({"tokens": (3, 5, 8)}, {}, {"input"}),
        ({}, {"input_mode": "vocab_prompt", "tokenizer": OTHER}, {"input", "runtime"}),
        ({"context": 40}, {}, {"runtime"}),
        ({"batch": 2}, {}, {"runtime"}),
        ({"generate": 7}, {}, {"runtime"}),
        ({}, {"threads": 2}, {"runtime", "backend"}),
        ({}, {"backend": "other"}, {"runtime", "backend"}),
        ({}, {"model_format": "other"}, {"runtime"}),
        ({}, {"family": "other_decoder"}, {"runtime"}),
        ({"policy": LIS_GREEDY}, {}, {"runtime"}),
        ({"diagnostics": True}, {}, {"runtime"}),
        ({"perf": True}, {}, {"runtime"}),
        ({"perf": True, "perf_per_token": True}, {}, {"runtime"}),
        ({"checkpoint_step": 0}, {}, {"runtime"}),
        ({"perf_tag": "other"}, {}, set()),
        ({"text": True}, {}, set()),
    ],
)
def test_what_is_changed_moves_its_fingerprint_and_no_other(request_change, facts_change, moved):
    assert changed(request_change, facts_change) - moved == set()
    assert changed(request_change, facts_change) == moved


@pytest.mark.contract("LIS-21", "LIS-7")
def test_two_tokenizers_have_two_fingerprints():
    one, two = (
        {"input_mode": "vocab_prompt", "tokenizer": Hasher().add(name).fingerprint()}
        for name in ("one", "two")
    )
    manifests = []
    for facts in (one, two):
        engine = SeededEngine()
        engine.facts = msgspec.structs.replace(engine.facts, **facts)
        manifests.append(execute(engine, PLAIN).report.manifest)
    assert manifests[0].input.fingerprint == one["tokenizer"]
    assert manifests[0].input.fingerprint != manifests[1].input.fingerprint


@pytest.mark.contract("LIS-21")
def test_checkpoint_steps_and_layers_are_told_apart():
    requests = [
        msgspec.structs.replace(PLAIN, checkpoint_step=step, intra_layer=layer)
        for step, layer in ((None, None), (0, None), (1, None), (1, 0), (1, 1))
    ]
    found = {run(item).report.manifest.runtime.fingerprint.hex for item in requests}
    assert len(found) == len(requests)


@pytest.fixture
def package(tmp_path):
    """A model and its driver as far as the identity of the binary reads them."""
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "decode.py").write_text("from cke.kernel_registry.kernels.linear import linear\n")
    (folder / "manifest.json").write_text("{}")
    model = SimpleNamespace(package=SimpleNamespace(folder=folder))
    return model, SimpleNamespace(name="per_layer")


def binary(package):
    from cke.api.execution import binary_fingerprint

    return binary_fingerprint(*package)


def other_provider(package, monkeypatch):
    (package[0].package.folder / "decode.py").write_text("from … import linear_f64\n")


def other_manifest(package, monkeypatch):
    (package[0].package.folder / "manifest.json").write_text('{"a":1}')


def other_driver(package, monkeypatch):
    package[1].name = "whole_step"


def other_flags(package, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")


def other_options(package, monkeypatch):
    from cke.runtime import drivers

    monkeypatch.setitem(drivers.XLA_OPTIONS, "xla_allow_excess_precision", True)


def other_mesh(package, monkeypatch):
    monkeypatch.setattr("jax.device_count", lambda: 8)


def other_backend(package, monkeypatch):
    monkeypatch.setattr("jax.default_backend", lambda: "tpu")


def other_numerics(package, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0")


@pytest.mark.contract("LIS-153", "LIS-4", "LIS-21")
@pytest.mark.parametrize(
    "change",
    [
        other_provider, other_manifest, other_driver, other_flags, other_options, other_mesh,
        other_backend, other_numerics,
    ],
)  # fmt: skip
def test_binary_is_the_package_and_the_numerics_under_it(change, package, monkeypatch):
    before = binary(package)
    assert binary(package) == before
    change(package, monkeypatch)
    assert binary(package).hex != before.hex


@pytest.mark.contract("LIS-55", "LIS-4")
def test_package_without_a_folder_has_no_identity(package):
    package[0].package.folder = None
    with pytest.raises(ArtifactError, match="the binary identity could not be captured"):
        binary(package)


@pytest.mark.contract("LIS-153")
def test_automatic_driver_is_recorded_as_the_one_that_runs(package):
    from cke.api.execution import resolved

    named = binary(package)
    package[1].name = "auto"
    assert resolved(package[1]) == "per_layer"
    assert binary(package) == named


@pytest.mark.contract("LIS-21", "LIS-5", "LIS-6", "LIS-7")
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("_weights_fingerprint", "model.safetensors"),
        ("_config_fingerprint", "config.json"),
        ("_tokenizer_fingerprint", "tokenizer.json"),
    ],
)
def test_files_of_a_model_are_identified_by_their_bytes(name, file, tmp_path):
    from cke.api import execution

    path = tmp_path / file
    files = SimpleNamespace(
        format="hf", path=tmp_path, located={"w": SimpleNamespace(file=path, offset=8)}
    )
    found = []
    for text in (b"a" * 32, b"b" * 32, b"a" * 33):
        path.write_bytes(text)
        found.append(getattr(execution, name)(SimpleNamespace(files=files)))
    assert len({item.hex for item in found}) == 3
    assert [item.size_bytes for item in found] == [32, 32, 33]


@pytest.mark.contract("LIS-21", "LIS-6", "LIS-7")
def test_config_and_tokenizer_of_a_gguf_file_are_its_header(tmp_path):
    from cke.api import execution

    path = tmp_path / "m.gguf"
    tensor = SimpleNamespace(file=path, offset=8)
    model = SimpleNamespace(files=SimpleNamespace(format="gguf", path=path, located={"w": tensor}))
    found = {}
    for text in (b"headerAAdata", b"headerAAother", b"headerBBdata"):
        path.write_bytes(text)
        found[text] = (
            execution._config_fingerprint(model).hex,
            execution._tokenizer_fingerprint(model).hex,
        )
    assert found[b"headerAAdata"] == found[b"headerAAother"] != found[b"headerBBdata"]
