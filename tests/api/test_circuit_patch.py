"""The patch of a proven change: it applies, it makes that change, and nothing else."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from cke.api.build import built_package
from cke.api.circuit_patch import Edit, applied, circuit_patch, written
from cke.api.model import load
from cke.codegen.build import lower_circuit
from cke.schemas.diagnosis import Counterfactual
from cke.schemas.manifest import Manifest
from tests.models import TinyModel
from tests.xray.faults import FAULTS, edited


def _op(manifest: Manifest, name: str) -> Any:
    ops = [
        op
        for program in manifest.graph.programs
        for function in program.functions
        for op in function.ops
        if op.id == name
    ]
    return ops[0]


def _change(op: Any, kind: str, what: str, new: Any) -> Counterfactual:
    old = op.operator if kind == "operator" else op.attributes.get(what)
    return Counterfactual(
        op=op.id,
        kind=kind,
        what=what,
        old=old,
        new=new,
        origin="declared",
        before=1.0,
        after=0.0,
        closes=True,
    )


QUICK = ("norm-epsilon", "activation")
CASES = {
    "rope-base": ("attention.rope", "attribute", "base", 10000.0, "base: 10000.0, width: rotary"),
    "rope-pairing": ("attention.rope", "attribute", "pairing", "split_half", "split_half, scal"),
    "norm-epsilon": (
        "attn_norm",
        "attribute",
        "eps",
        1e-6,
        "+    attn_norm: rms_norm[D](eps: 1e-6)    hf",
    ),
    "window": ("attention.sdpa", "attribute", "window", None, "window: none)"),
    "activation": (
        "mlp.gelu_tanh",
        "operator",
        "gelu_tanh",
        "silu",
        "+  h = silu(gate) * up        ",
    ),
    "softcap-missing": ("attention.sdpa", "attribute", "softcap", 50.0, "window, softcap: 50.0)"),
}


def _named(name: str) -> object:
    return name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)


@pytest.mark.contract("XRAY-19")
@pytest.mark.parametrize("name", [_named(name) for name in CASES])
def test_the_patch_applies_and_makes_the_change(
    name: str, tiny_model: TinyModel, tmp_path: Path
) -> None:
    fault = FAULTS[name]
    circuit = edited(fault, tmp_path / "circuits")
    model = load(tiny_model(fault.family), circuit)
    manifest = built_package(model.files, circuit, model.dtype).manifest
    assert manifest is not None
    op_id, kind, what, new, text = CASES[name]
    op = _op(manifest, op_id)
    change = _change(op, kind, what, new)
    patch = circuit_patch(change, str(op.span), manifest, circuit, model.files, model.dtype)
    assert patch is not None
    assert patch.startswith("--- a/blocks/decoder.circuit\n+++ b/blocks/decoder.circuit\n@@ ")
    assert text in patch
    assert sum(line[0] in "+-" for line in patch.splitlines()) == 4
    subprocess.run(["patch", "-p1"], input=patch.encode(), cwd=circuit.parent, check=True)
    graph = lower_circuit(circuit, model.files, model.dtype).graph
    ops = [op for function in graph.programs[0].functions for op in function.ops]
    fixed = [item for item in ops if (item.span.line, item.span.column)[0] == op.span.line]
    if kind == "attribute":
        assert next(i for i in fixed if i.id == op_id).attributes[what] == new
    else:
        assert new in [item.operator for item in fixed]


@pytest.mark.parametrize(
    ("kind", "what", "new"),
    [
        ("operand", "operand 0", "k"),
        ("insertion", "scale", 2.0),
        ("attribute", "base", "nonsense"),
        ("attribute", "scaling", {"kind": "linear", "factor": 2.0}),
        ("operator", "rope", "its operand 0 alone"),
    ],
)
def test_what_no_edit_says_gives_no_patch(
    kind: str, what: str, new: Any, tiny_model: TinyModel, tmp_path: Path
) -> None:
    model = load(tiny_model("llama"))
    manifest = built_package(model.files, None, model.dtype).manifest
    assert manifest is not None
    op = _op(manifest, "attention.rope")
    change = _change(op, kind, what, new)
    assert circuit_patch(change, str(op.span), manifest, None, model.files, model.dtype) is None


@pytest.mark.slow
def test_a_value_that_differs_by_layer_gives_no_patch(tiny_model: TinyModel) -> None:
    model = load(tiny_model("gemma3"))
    manifest = built_package(model.files, None, model.dtype).manifest
    assert manifest is not None
    op = _op(manifest, "attention.sdpa")
    change = _change(op, "attribute", "window", 5)
    assert circuit_patch(change, str(op.span), manifest, None, model.files, model.dtype) is None


def test_a_library_line_is_patched_without_touching_the_library(tiny_model: TinyModel) -> None:
    model = load(tiny_model("llama"))
    manifest = built_package(model.files, None, model.dtype).manifest
    assert manifest is not None
    op = _op(manifest, "attention.rope")
    change = _change(op, "attribute", "base", 5000.0)
    patch = circuit_patch(change, str(op.span), manifest, None, model.files, model.dtype)
    assert patch is not None
    assert patch.startswith("--- a/circuits/blocks/decoder.circuit\n")


def test_an_edit_keeps_what_is_aligned_after_it_in_place() -> None:
    assert applied("h = f(x)      @ p\n", Edit(4, 5, "gelu")) == "h = gelu(x)   @ p\n"
    assert applied("h = f(x)  @ p\n", Edit(4, 5, "gelu")) == "h = gelu(x)  @ p\n"
    assert applied("h = f(x)\n  y  @ p\n", Edit(4, 5, "gelu")) == "h = gelu(x)\n  y  @ p\n"


def test_values_are_written_as_a_circuit_reads_them() -> None:
    values = (None, True, 1e-06, 10000.0, 4, "split_half", {"kind": "linear"})
    assert [written(item) for item in values] == [
        *("none", "true", "1e-6", "10000.0", "4", "split_half"),
        None,
    ]
