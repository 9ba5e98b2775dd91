import shutil
from importlib.resources import files
from pathlib import Path

import pytest

from cke.cli import main
from cke.codegen.build import lower_circuit
from cke.codegen.library import (
    build_library,
    generated_folder,
    library_circuits,
    library_diff,
    reference_source,
)
from cke.codegen.package import Package, write_package
from cke.errors import CkeError


def test_the_library_is_what_its_circuits_give() -> None:
    assert library_diff(generated_folder()) == ""


def test_a_changed_and_a_stale_package_show_in_the_diff(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cke.codegen.library.library_circuits", lambda: ("llama",))
    package = build_library("llama")
    text = package.files["decode.py"].replace(b'"causal"', b'"bidirectional"')
    assert text != package.files["decode.py"]
    write_package(Package("llama", {**package.files, "decode.py": text}), tmp_path / "llama")
    write_package(package, tmp_path / "old")
    diff = library_diff(tmp_path)
    assert "--- a/llama/decode.py" in diff
    assert "a/llama/prefill.py" not in diff
    assert "--- a/old/decode.py" in diff


def test_the_same_build_gives_the_same_bytes() -> None:
    assert build_library("gpt2") == build_library("gpt2")


def test_a_capture_that_names_no_checkpoint_is_an_error() -> None:
    with pytest.raises(CkeError) as raised:
        lower_circuit("llama", reference_source("llama"), "f32", ("attention.rope_querry",))
    assert str(raised.value).splitlines()[0] == (
        "circuits/llama.circuit: error[CKE572]: expected a capture of a checkpoint, "
        "got `attention.rope_querry`, which names none"
    )


def test_a_weight_that_makes_nothing_that_is_read_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "circuits"
    shutil.copytree(Path(str(files("cke.circuits"))), folder)
    block = folder / "blocks" / "decoder.circuit"
    block.write_text(block.read_text().replace("append(kv, k, v)", "append(kv, k, k)"))
    with pytest.raises(CkeError) as raised:
        lower_circuit(folder / "llama.circuit", reference_source("llama"), "f32")
    assert (
        str(raised.value)
        .splitlines()[0]
        .endswith(
            "error[CKE573]: expected the weight `attention.v_proj.weight` to reach a result, "
            "got `attention.v_proj`, which makes nothing that is read"
        )
    )


def test_a_captured_result_is_exposed_and_the_kernels_stay() -> None:
    plain = lower_circuit("llama", reference_source("llama"), "f32")
    captured = lower_circuit("llama", reference_source("llama"), "f32", ("*",))
    assert [item.kernel_id for item in plain.build.resolutions] == [
        item.kernel_id for item in captured.build.resolutions
    ]
    names = captured.calls.programs[0].functions[1].capture
    assert "attention.attention_scores" in names
    assert "layer_input" in names


def test_every_resolution_records_its_rejections() -> None:
    found = {
        item.kernel_id: {rejection.kernel_id for rejection in item.rejections}
        for item in lower_circuit("llama", reference_source("llama"), "f32").build.resolutions
    }
    assert "linear" in found["linear_group"]
    assert "rms_norm_wide" in found["rms_norm"]


def test_cke_build_writes_a_package(
    tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = repository / "circuits" / "reference" / "llama"
    folder = tmp_path / "llama"
    assert main(["build", "llama", "--model", str(config), "-o", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder}\n"
    assert sorted(path.name for path in folder.iterdir()) == [
        "__init__.py",
        "decode.py",
        "manifest.json",
        "prefill.py",
    ]


def test_cke_dump_prints_a_level(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", "llama", "--stage", "call"]) == 0
    assert capsys.readouterr().out.startswith("CallIR llama@1 f32 ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build", "llama"], "expected CIRCUIT and `--model`, or `--check`"),
        (["dump", "llama", "--dtype", "int8"], "`--dtype` expects f32 or bf16, got `int8`"),
    ],
)
def test_wrong_usage_is_one_clear_error(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"error[CKE901]: {message}\n")


def test_every_library_circuit_keeps_one_function_per_layer_kind() -> None:
    for name in library_circuits():
        levels = lower_circuit(name, reference_source(name), "f32")
        for program in levels.calls.programs:
            layers = [layer for function in program.functions for layer in function.layers]
            assert sorted(layers) == list(range(levels.calls.dims["L"]))
