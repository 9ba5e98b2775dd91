"""The tiny models of every family can be made, and hide no mistake behind zeros and ones."""

import pytest

from tests.models import FAMILIES, TinyModel, make_model

pytestmark = pytest.mark.oracle_torch


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_tiny_model_has_no_constant_parameter(family: str) -> None:
    for name, parameter in make_model(family).named_parameters():
        if parameter.numel() > 1:
            assert parameter.detach().std() > 0.01, name


def test_tiny_model_is_the_same_for_the_same_seed(tiny_model: TinyModel) -> None:
    import torch

    first, again, other = (make_model("llama", seed=seed).lm_head.weight for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_tiny_model_folder_holds_config_and_weights(tiny_model: TinyModel) -> None:
    folder = tiny_model("llama", num_hidden_layers=1)
    assert folder.joinpath("config.json").is_file()
    assert folder.joinpath("model.safetensors").is_file()
    assert tiny_model("llama", num_hidden_layers=1) == folder


def test_tiny_model_can_be_sharded(tiny_model: TinyModel) -> None:
    folder = tiny_model("llama", shard_size="20KB")
    assert folder.joinpath("model.safetensors.index.json").is_file()
