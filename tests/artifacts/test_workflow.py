"""The whole workflow on models: faults planted between two builds are found, and nothing else."""

import shlex
import shutil
import sys

import pytest

from cke.cli import main
from tests.artifacts.test_verify import report_of

PROMPT = "504 2365 282 4649 314"
PLANT = """
schedule i in L:
  residual_scale: float = 0.9 if i == 2 else 1
"""


def planted_circuit(folder, repository, name):
    """A copy of a library circuit whose layer 2 scales what it adds by 0.9."""
    shutil.copytree(repository / "circuits" / "blocks", folder / "blocks")
    text = (repository / "circuits" / f"{name}.circuit").read_text()
    path = folder / f"{name}.circuit"
    path.write_text(text + PLANT)
    return path


@pytest.mark.slow
@pytest.mark.contract("LIS-94", "LIS-140")
def test_qwen3_is_compared_and_its_layers_are_unsupported(tiny_model, tmp_path, repository, capsys):
    circuit = planted_circuit(tmp_path, repository, "qwen3")
    base = ["--model", str(tiny_model("qwen3")), "--tokens", "5 6 7", "-n", "6"]
    assert main(["verify", "backend", *base, "--out", str(tmp_path / "same")]) == 0
    options = ["--candidate-circuit", str(circuit), "--out", str(tmp_path / "v")]
    assert main(["verify", "backend", *base, *options]) == 4
    found = report_of(tmp_path / "v")[1]
    assert found.token_localization.status == "first_mismatch_found"
    assert found.prefix_reproduction.status == "reproduction_verified"
    assert found.layer_localization.status == "unsupported_checkpoint_layout"
    assert found.intra_layer_localization is None
    assert "next: cke xray --model " in capsys.readouterr().out


@pytest.mark.nightly
@pytest.mark.real_model
@pytest.mark.contract("LIS-137", "LIS-138", "LIS-149")
def test_attribute_of_one_layer_of_smollm2_is_found(smollm2_gguf, tmp_path, repository, capsys):
    base = ["--model", str(smollm2_gguf), "--tokens", PROMPT, "-n", "16"]
    assert main(["verify", "backend", *base, "--out", str(tmp_path / "same")]) == 0
    circuit = planted_circuit(tmp_path, repository, "llama")
    options = ["--candidate-circuit", str(circuit), "--out", str(tmp_path / "v")]
    assert main(["verify", "backend", *base, *options]) == 4
    folder, found = report_of(tmp_path / "v")
    assert found.prefix_reproduction.tier == "independent_rerun_verified"
    assert found.layer_localization.interval.notation == "(layer.1.output, layer.2.output]"
    stages = found.intra_layer_localization.interval.notation
    assert stages == "(attention_output_projection, post_attention_residual]"
    assert "| post_attention_residual | differs |" in (folder / "report.md").read_text()
    following = capsys.readouterr().out.splitlines()[-1]
    assert main(shlex.split(following)[2:]) == 1
    shown = capsys.readouterr().out
    assert "layer.2.edge/x/scale is the first edge that differs from cke." in shown
    assert "`by` 1.0 in place of 0.9" in shown


@pytest.mark.nightly
@pytest.mark.real_model
@pytest.mark.multiprocess
@pytest.mark.contract("LIS-137", "LIS-138", "LIS-149")
def test_dtype_of_a_kernel_in_another_build_of_smollm2_is_found(
    smollm2_gguf, tmp_path, repository, monkeypatch
):
    source = tmp_path / "src"
    shutil.copytree(repository / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    kernel = source / "cke" / "kernel_registry" / "kernels" / "rms_norm.py"
    text = kernel.read_text()
    result = "return settle(flat * scale)."
    assert result in text
    rounded = "return settle(flat * scale).astype(jnp.float8_e4m3fn).astype(flat.dtype)."
    kernel.write_text(text.replace(result, rounded))
    base = ["--model", str(smollm2_gguf), "--tokens", PROMPT, "-n", "40"]
    for path, code in ((repository / "src", 0), (source, 4)):
        command = f"env PYTHONPATH={path} {sys.executable} -m cke run"
        out = tmp_path / str(code)
        options = ["--reference-command", command, "--out", str(out)]
        assert main(["verify", "runtime", *base, *options]) == code
    found = report_of(out)[1]
    assert found.layer_localization.target_layer == 0
    stages = found.intra_layer_localization.interval.notation
    assert stages == "(layer_input, attention_norm_output]"
