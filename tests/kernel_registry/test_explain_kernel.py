"""`cke explain kernel`: a contract, or every provider of an operator."""

import json

import pytest

from cke.cli import main
from cke.cli.kernels import explain_kernel, explain_kernel_text
from cke.kernel_registry.operators import OPERATORS


def test_an_operator_shows_its_providers_best_first() -> None:
    shown = [kernel["id"] for kernel in explain_kernel("linear")["kernels"]]
    assert shown == ["linear", "linear_group", "linear_wide", "linear_f64"]


def test_a_kernel_shows_its_promise() -> None:
    text = explain_kernel_text("linear_f64")
    assert text.splitlines()[0] == "kernel linear_f64 (diagnostic, priority 100)"
    assert "  compute    input model, weight model, accumulator f64" in text.splitlines()


def test_every_operator_can_be_explained() -> None:
    for operator in OPERATORS:
        assert explain_kernel(operator)["kernels"]


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "kernel", "sdpa", "--format", "json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert [kernel["id"] for kernel in body["kernels"]] == ["sdpa", "sdpa_context"]
