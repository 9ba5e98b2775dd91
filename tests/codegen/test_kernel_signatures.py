"""What generated code leaves out, every kernel has as its default: the rule behind `implied`."""

import inspect
from importlib import import_module

import msgspec
import pytest

from cke.codegen.passes.lower_lowered_to_call import LAYOUT_DEFAULTS
from cke.kernel_registry.contract_files import KernelContract, registry
from cke.kernel_registry.operators import OPERATORS

CONTRACTS = registry()


def parameters(contract: KernelContract) -> dict[str, inspect.Parameter]:
    module = import_module(f"cke.kernel_registry.kernels.{contract.id}")
    return dict(inspect.signature(getattr(module, contract.function)).parameters)


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.id)
def test_an_absent_operand_is_the_default_and_has_its_own_name(contract: KernelContract) -> None:
    operator = OPERATORS[contract.operator]
    own = parameters(contract)
    for operand in (*operator.inputs, *operator.weights):
        if operand.absent is not None:
            assert own[operand.name].default is None, operand.name
    optional = [operand.absent is not None for operand in (*operator.inputs, *operator.weights)]
    if any(optional):
        after = (*operator.inputs, *operator.weights)[optional.index(True) :]
        assert [name for name in own if name in {item.name for item in after}] == [
            item.name for item in after
        ]


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.id)
def test_a_default_of_the_operator_is_the_default_of_the_kernel(contract: KernelContract) -> None:
    operator = OPERATORS[contract.operator]
    weights = {weight.name for weight in operator.weights}
    own = parameters(contract)
    for attribute in operator.attributes:
        if attribute.kind in ("axis", "axes") or attribute.name in weights:
            continue
        if attribute.default is not msgspec.UNSET:
            assert own[attribute.name].default == attribute.default, attribute.name
    for name, value in LAYOUT_DEFAULTS.items():
        if name in own:
            assert own[name].default == value, name
