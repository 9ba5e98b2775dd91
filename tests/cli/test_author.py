"""The verbs of an author: exit codes, what they print, what they write."""

import json
from pathlib import Path

import pytest

from cke.cli import main
from cke.cli.lsp import as_lsp, diagnostics, hover_text, make_server
from cke.dsl.check import check_circuit
from cke.dsl.resolve import load_circuit

GOOD = 'circuit x@1 from llama@1 "Example"\n\nconfig:\n  qk_norm = flat\n'
BAD = 'circuit x@1 from llama@1 "Example"\n\nconfig:\n  qk_nrom = flat\n'
CONFIG = {
    "architectures": ["FreshForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 128,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "novelty": 0.5,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    tmp_path.joinpath("good.circuit").write_text(GOOD, "utf-8")
    tmp_path.joinpath("bad.circuit").write_text(BAD, "utf-8")
    tmp_path.joinpath("config.json").write_text(json.dumps(CONFIG), "utf-8")
    return tmp_path


def test_check_passes_and_fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "good.circuit"]) == 0
    assert capsys.readouterr().out == "good.circuit: ok\n"
    assert main(["check", "good.circuit", "bad.circuit"]) == 2
    out = capsys.readouterr().out
    assert out.startswith("bad.circuit:4:3: error[CKE221]: `qk_nrom` rebinds nothing")


def test_check_with_a_config_accounts_for_its_keys(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "good.circuit", "--config", "config.json"]) == 2
    assert "`$.novelty`: error[CKE301]: unknown config key" in capsys.readouterr().out


@pytest.mark.parametrize("format", ["json", "markdown", "github", "junit", "sarif"])
def test_check_renders_every_format(
    folder: Path, capsys: pytest.CaptureFixture[str], format: str
) -> None:
    assert main(["check", "bad.circuit", "--format", format]) == 2
    assert "CKE221" in capsys.readouterr().out


def test_absent_file_is_missing_input(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "absent.circuit"]) == 3
    assert "error[CKE201]" in capsys.readouterr().err
    assert main(["fmt", "absent.circuit"]) == 3


def test_fmt_rewrites_and_check_only_reports(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ugly = GOOD.replace("qk_norm = flat", "qk_norm=flat")
    folder.joinpath("ugly.circuit").write_text(ugly, "utf-8")
    assert main(["fmt", "--check", "ugly.circuit", "good.circuit"]) == 1
    assert capsys.readouterr().out == "ugly.circuit: not formatted\n"
    assert folder.joinpath("ugly.circuit").read_text("utf-8") == ugly
    assert main(["fmt", "ugly.circuit"]) == 0
    assert folder.joinpath("ugly.circuit").read_text("utf-8") == GOOD


def test_fmt_leaves_a_broken_file_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder.joinpath("broken.circuit").write_text("config:\n  a = (\n", "utf-8")
    assert main(["fmt", "broken.circuit"]) == 2
    assert folder.joinpath("broken.circuit").read_text("utf-8") == "config:\n  a = (\n"


def test_expand_names_the_origin_of_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["expand", "qwen3"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if "qk_norm: none" in line)
    assert row.endswith("# circuits/qwen3.circuit:8")


def test_new_circuit_passes_its_own_check(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "--from", "config.json", "-o", "fresh.circuit"]) == 0
    text = folder.joinpath("fresh.circuit").read_text("utf-8")
    assert "circuit fresh@1 from llama@1" in text
    assert "  hf FreshForCausalLM" in text
    assert "novelty: float = hf.novelty   # 0.5 in this config" in text
    check_circuit(load_circuit(folder / "fresh.circuit"))


def test_explain_prints_codes_circuits_and_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "CKE221"]) == 0
    assert capsys.readouterr().out.startswith("CKE221: a rebind reaches nothing")
    assert main(["explain", "qwen3"]) == 0
    assert "qk_norm = per_head  # circuits/qwen3.circuit:8" in capsys.readouterr().out
    assert main(["explain", "CKE000"]) == 2


def test_editor_sees_errors_and_origins(folder: Path) -> None:
    found = diagnostics(folder / "bad.circuit", BAD)
    assert [item.code for item in found] == ["CKE221"]
    shown = as_lsp(found[0])
    assert (shown.range.start.line, shown.range.start.character) == (3, 2)
    assert "did you mean `qk_norm`" in shown.message
    assert diagnostics(folder / "good.circuit", GOOD) == ()
    assert hover_text(folder / "good.circuit", GOOD, "theta") == (
        "theta: float = hf.rope_parameters.rope_theta ?? hf.rope_theta ?? gguf.rope.freq_base "
        "?? 10000.0\n\ncircuits/blocks/config.circuit:25"
    )
    assert make_server().name == "cke"
