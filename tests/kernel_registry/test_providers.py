"""What the shipped providers are chosen for."""

import os
import subprocess
import sys

import msgspec
import pytest

from cke.kernel_registry.resolve import Request, contract_of, covers, promised, resolve
from cke.schemas.ir import Contract
from cke.schemas.manifest import Rejection

REQUIRED = Contract(
    storage={"input": "f32", "weight": "f32", "output": "f32"},
    compute={"input": "f32", "accumulator": "f32"},
    rounding={"mode": "nearest_even", "points": ["output"]},
    reduction={"kind": "dot", "order": "unspecified", "partial": "f32"},
)
REQUEST = Request(
    operator="linear",
    phase="decode",
    function="layer",
    ops=("attention.q_proj",),
    dtype="f32",
    contract=REQUIRED,
    results=("output",),
)


def test_an_accumulator_may_be_wider_but_not_narrower() -> None:
    wide = msgspec.structs.replace(REQUIRED, compute={"accumulator": "f64"})
    resolution = resolve(msgspec.structs.replace(REQUEST, contract=wide))
    assert resolution.kernel_id == "linear_f64"
    narrow = next(r for r in resolution.rejections if r.kernel_id == "linear")
    assert narrow.stage == "contract"
    assert narrow.reason == "compute.accumulator: required f64, promises f32"


def test_a_captured_result_rejects_a_provider_that_hides_it() -> None:
    contract = promised(contract_of("sdpa"), "f32")
    request = Request(
        operator="sdpa",
        phase="prefill",
        function="layer",
        ops=("attention.sdpa",),
        dtype="f32",
        contract=contract,
        results=("scores", "context"),
    )
    resolution = resolve(request)
    assert resolution.kernel_id == "sdpa"
    assert resolution.rejections == (
        Rejection(
            kernel_id="sdpa_context",
            stage="contract",
            reason="does not expose `scores`, which is read or captured",
        ),
    )


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_group_has_its_own_provider(dtype: str) -> None:
    group = msgspec.structs.replace(
        REQUEST, ops=("q", "k", "v"), dtype=dtype, contract=promised(contract_of("linear"), dtype)
    )
    assert resolve(group).kernel_id == "linear_group"
    assert covers("linear", 3, "decode")
    assert not covers("rope", 2, "decode")


def test_the_phase_chooses_between_expert_kernels() -> None:
    contract = promised(contract_of("expert_linear_loop"), "f32")
    chosen = {
        phase: resolve(
            Request(
                operator="expert_linear",
                phase=phase,
                function="layer",
                ops=("moe.up",),
                dtype="f32",
                contract=contract,
            )
        ).kernel_id
        for phase in ("prefill", "decode")
    }
    assert chosen == {"prefill": "expert_linear_loop", "decode": "expert_linear_gather"}


def test_rounding_points_choose_between_norms() -> None:
    for kernel_id in ("rms_norm", "rms_norm_wide"):
        contract = promised(contract_of(kernel_id), "bf16")
        request = Request(
            operator="rms_norm",
            phase="decode",
            function="layer",
            ops=("norm",),
            dtype="bf16",
            contract=contract,
        )
        assert resolve(request).kernel_id == kernel_id


def test_the_registry_imports_neither_jax_nor_numpy() -> None:
    code = (
        "import sys; from cke.kernel_registry.resolve import registry; registry();"
        "sys.exit(any(name in sys.modules for name in ('jax', 'numpy')))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], check=False, env=environment)
    assert done.returncode == 0
