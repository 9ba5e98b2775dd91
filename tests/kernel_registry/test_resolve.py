"""Resolution filters, then ranks, and ends with exactly one provider or an error."""

from typing import Any

import msgspec
import pytest

from cke.errors import CkeError
from cke.kernel_registry.contract_files import KernelContract
from cke.kernel_registry.resolve import Request, contract_of, resolve
from cke.schemas.ir import Contract

BASE = contract_of("silu")
REQUEST = Request(
    operator="silu",
    phase="decode",
    function="layer",
    ops=("h",),
    dtype="f32",
    contract=Contract(),
    results=("output",),
)


def provider(name: str, **changes: Any) -> KernelContract:
    fields = {"id": name, "contract_id": f"{name}.v1", "equivalence_group": "silu", **changes}
    return msgspec.structs.replace(BASE, **fields)


def rejected(contracts: list[KernelContract], request: Request = REQUEST) -> dict[str, str]:
    return {r.kernel_id: r.stage for r in resolve(request, contracts).rejections}


@pytest.mark.contract("XRAY-41")
def test_incompatible_providers_of_higher_priority_lose() -> None:
    contracts = [
        provider("candidate_900", priority=900, lifecycle="candidate"),
        provider("wrong_phase_800", priority=800, phases=["prefill"]),
        provider("wrong_dtype_700", priority=700, dtypes=["bf16"]),
        provider("compatible_100", priority=100, lifecycle="production"),
    ]
    resolution = resolve(REQUEST, contracts)
    assert resolution.kernel_id == "compatible_100"
    assert {r.kernel_id: (r.stage, r.reason) for r in resolution.rejections} == {
        "candidate_900": ("rank", "candidate 900 ranks below production 100 of `compatible_100`"),
        "wrong_dtype_700": ("dtype", "takes bf16, required f32"),
        "wrong_phase_800": ("phase", "runs in prefill, required decode"),
    }


@pytest.mark.contract("XRAY-41")
def test_order_of_the_providers_decides_nothing() -> None:
    contracts = [provider("a", priority=100), provider("b", priority=200)]
    chosen = {resolve(REQUEST, order).kernel_id for order in (contracts, contracts[::-1])}
    assert chosen == {"b"}


@pytest.mark.parametrize(
    ("stage", "changes"),
    [
        ("contract", {"exposes": []}),
        ("phase", {"phases": ["prefill"]}),
        ("dtype", {"dtypes": ["bf16"]}),
        ("layout", {"layouts": ["column_major"]}),
        ("platform", {"platforms": ["tpu"]}),
    ],
)
def test_each_stage_of_the_filter_rejects(stage: str, changes: dict[str, Any]) -> None:
    assert rejected([provider("good"), provider("bad", priority=900, **changes)]) == {"bad": stage}


def test_wider_accumulator_than_asked_is_compatible() -> None:
    request = msgspec.structs.replace(REQUEST, contract=Contract(compute={"accumulator": "f32"}))
    wide = provider("wide", promise={"compute": {"accumulator": "f64"}})
    narrow = provider("narrow", priority=900, promise={"compute": {"accumulator": "bf16"}})
    assert rejected([wide, narrow], request) == {"narrow": "contract"}


def test_no_provider_lists_every_rejection() -> None:
    contracts = [provider("a", phases=["prefill"]), provider("b", dtypes=["bf16"])]
    with pytest.raises(CkeError) as caught:
        resolve(REQUEST, contracts)
    assert str(caught.value) == (
        "error[CKE502]: no provider for `h` (silu, decode, f32, cpu)\n"
        "  note: `a` rejected at phase: runs in prefill, required decode\n"
        "  note: `b` rejected at dtype: takes bf16, required f32"
    )


def test_a_tie_is_an_error() -> None:
    with pytest.raises(CkeError) as caught:
        resolve(REQUEST, [provider("a"), provider("b")])
    assert str(caught.value) == (
        "error[CKE503]: 2 providers for `h` (silu, decode, f32, cpu): `a`, `b`\n"
        "  help: they tie as production providers of priority 100: give one another priority"
    )


def test_providers_of_two_equivalence_groups_are_an_error() -> None:
    contracts = [provider("a"), provider("b", priority=900, equivalence_group="other")]
    with pytest.raises(CkeError, match="equivalence groups other, silu"):
        resolve(REQUEST, contracts)
