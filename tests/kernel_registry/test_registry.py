"""The registry is whole: kernels, contracts, ids and evidence belong together."""

import json
from importlib.resources import files
from pathlib import Path

from cke.kernel_registry.contract_files import registry
from cke.kernel_registry.operators import OPERATORS

FOLDER = files("cke.kernel_registry")


def test_every_contract_has_a_kernel_of_its_stem_and_the_reverse() -> None:
    kernels = {
        Path(entry.name).stem
        for entry in (FOLDER / "kernels").iterdir()
        if entry.name.endswith(".py") and entry.name != "__init__.py"
    }
    assert {contract.id for contract in registry()} == kernels


def test_every_operator_has_a_provider_in_every_phase() -> None:
    for operator in OPERATORS:
        phases = {p for c in registry() if c.operator == operator for p in c.phases}
        assert phases == {"prefill", "decode", "encode"}, operator


def test_contract_ids_are_unique() -> None:
    ids = [contract.contract_id for contract in registry()]
    assert len(ids) == len(set(ids))


def test_every_kernel_function_is_defined_in_its_module() -> None:
    for contract in registry():
        text = (FOLDER / "kernels" / f"{contract.id}.py").read_text("utf-8")
        assert f"\ndef {contract.function}(" in text


def test_the_evidence_of_a_validated_kernel_is_a_test_that_exists(repository: Path) -> None:
    for contract in registry():
        assert contract.validation.state != "validated" or contract.validation.evidence
        for evidence in contract.validation.evidence:
            if evidence.endswith(".json"):
                gate = json.loads((repository / evidence).read_text("utf-8"))["body"]
                assert (gate["candidate"], gate["promoted"]) == (contract.id, True)
                continue
            file, _, name = evidence.partition("::")
            assert f"def {name.partition('[')[0]}(" in (repository / file).read_text("utf-8")
