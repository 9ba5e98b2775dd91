"""The study of neutrality: every family nightly, a sample each time, and one that must fail."""

from typing import Any

import jax
import pytest

from cke.api.neutrality import neutrality_of
from cke.runtime.drivers import PerLayer
from tests.models import FAMILIES, TinyModel


@pytest.mark.slow
@pytest.mark.contract("XRAY-43")
def test_capturing_every_edge_changes_no_bit_of_a_sample(tiny_model: TinyModel) -> None:
    study = neutrality_of(tiny_model("llama", num_hidden_layers=1), "bfloat16", inputs=2)
    assert study.neutral
    assert study.same_kernels
    assert study.drivers_agree == 2
    assert [(cell.driver, cell.phase) for cell in study.cells] == [
        (driver, phase) for driver in ("per_layer", "whole_step") for phase in ("prefill", "decode")
    ]
    assert study.settings["xla"] == {"xla_allow_excess_precision": False}


@pytest.mark.contract("XRAY-43")
def test_a_program_whose_bits_change_with_captures_is_found(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = PerLayer.run

    def shifted(driver: Any, *arguments: Any) -> Any:
        found = run(driver, *arguments)
        if not driver.package.manifest.capture:
            return found
        logits = jax.numpy.nextafter(found.outputs[0], jax.numpy.inf)
        return found._replace(outputs=(logits, *found.outputs[1:]))

    monkeypatch.setattr(PerLayer, "run", shifted)
    monkeypatch.setattr("cke.api.neutrality.DRIVERS", ("per_layer",))
    study = neutrality_of(tiny_model("llama", num_hidden_layers=1), "float32", inputs=2)
    assert not study.neutral
    prompt, steps = study.cells
    assert (prompt.repeatable, prompt.neutral, prompt.differing) == (2, 0, ("logits",))
    assert steps.differing == ("step.0.logits", "step.1.logits")


@pytest.mark.nightly
@pytest.mark.contract("XRAY-43")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_capturing_every_edge_changes_no_bit(
    tiny_model: TinyModel, family: str, dtype: str
) -> None:
    study = neutrality_of(tiny_model(family), dtype)
    assert study.neutral, study.cells
    assert study.same_kernels
    assert study.drivers_agree == study.cells[0].inputs == 20
