"""A provider is put first for one run, and for good only by its gate."""

from importlib.resources import files

import msgspec
import pytest

from cke.api.promote import incumbent_of
from cke.errors import CkeError
from cke.kernel_registry.contract_files import read_contract, registry
from cke.kernel_registry.promotion import preferring, promoted_text, ranked
from cke.kernel_registry.resolve import Request, contract_of, resolve
from cke.schemas.ir import Contract, TensorType

Q = TensorType(axes=("B", "T", "H", "E"), shape=("B", "T", 4, 16), dtype="f32")
K = TensorType(axes=("B", "S", "K", "E"), shape=("B", "S", 2, 16), dtype="f32")
P = TensorType(axes=("B", "T"), shape=("B", "T"), dtype="i32")
REQUEST = Request(
    operator="sdpa",
    phase="prefill",
    function="layer",
    ops=("attention.sdpa",),
    dtype="f32",
    contract=Contract(),
    inputs=(Q, K, K, None, None, P, P),
    arguments={"mask": "causal"},
    results=("context",),
)


@pytest.mark.contract("XRAY-26")
def test_a_candidate_is_selected_only_where_it_is_preferred() -> None:
    assert resolve(REQUEST).kernel_id == "sdpa"
    with preferring("sdpa_context"):
        chosen = resolve(REQUEST)
        assert chosen.kernel_id == "sdpa_context"
        assert [(r.kernel_id, r.stage) for r in chosen.rejections] == [("sdpa", "rank")]
    assert resolve(REQUEST).kernel_id == "sdpa"


@pytest.mark.contract("XRAY-41")
def test_a_preferred_provider_still_passes_the_filter_first() -> None:
    request = msgspec.structs.replace(REQUEST, results=("context", "scores"))
    with preferring("sdpa_context"):
        chosen = resolve(request)
    assert chosen.kernel_id == "sdpa"
    assert [(r.kernel_id, r.stage) for r in chosen.rejections] == [("sdpa_context", "contract")]


def test_ranking_changes_the_preferred_contract_alone() -> None:
    with preferring("sdpa_context"):
        changed = [
            new for old, new in zip(registry(), ranked(registry()), strict=True) if old != new
        ]
    assert [item.id for item in changed] == ["sdpa_context"]
    assert ranked(registry()) == registry()


@pytest.mark.contract("XRAY-26")
def test_a_promoted_contract_names_its_gate_and_outranks() -> None:
    file = "contracts/sdpa_context.toml"
    text = (files("cke.kernel_registry") / file).read_text("utf-8")
    after = read_contract(file, promoted_text(text, 200, "kernel_registry/gates/sdpa_context.json"))
    before = contract_of("sdpa_context")
    assert (after.lifecycle, after.priority) == ("production", 200)
    assert after.validation.evidence == [
        "kernel_registry/gates/sdpa_context.json",
        *before.validation.evidence,
    ]
    again = promoted_text(text, 200, before.validation.evidence[0])
    assert read_contract(file, again).validation == before.validation


def test_only_a_candidate_is_promoted() -> None:
    with pytest.raises(CkeError) as caught:
        incumbent_of(contract_of("sdpa"), None)  # type: ignore[arg-type]
    assert str(caught.value) == (
        "error[CKE505]: expected a kernel in lifecycle `candidate`, got `sdpa` in `production`\n"
        "  help: `cke explain kernel OPERATOR` shows the lifecycle of every provider"
    )
