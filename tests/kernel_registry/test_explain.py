"""`cke explain kernel` shows a contract, and refuses a name that is none."""

import pytest

from cke.cli import main


def test_an_unknown_name_lists_the_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "kernel", "no_such_kernel"]) == 2
    text = capsys.readouterr().err
    assert text.startswith("error[CKE504]: no kernel is called `no_such_kernel`\n  help: kernels: ")
    assert "rms_norm" in text


def test_a_kernel_shows_its_contract(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "kernel", "rms_norm"]) == 0
    assert "rms_norm.sum_f32.round_normalized.v1" in capsys.readouterr().out
