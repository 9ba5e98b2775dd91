"""The stages before numbers: each fault of metadata has its class, and no tensor is opened."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from cke.runtime.schedule import CaptureRequest, plan_segments, tokens_sha256
from cke.schemas.trace import (
    Body,
    CacheLayout,
    Identity,
    Neutrality,
    Producer,
    Record,
    Summary,
)
from cke.xray.classes import CLASSES, OWNERS, STAGES
from cke.xray.joins import binding_fault, declared_fault, metadata_fault, schedule_fault
from cke.xray.profile import profile_entry

replace = msgspec.structs.replace
REQUEST = CaptureRequest(tokens=((1, 2, 3, 4),), forced=((5,),))


def _body(side: str, request: CaptureRequest = REQUEST) -> Body:
    return Body(
        side="subject" if side == "subject" else "oracle",
        producer=Producer(
            name="cke" if side == "subject" else "pytorch",
            version="1",
            dtype="f32",
            weight_dtypes={"float32": 3},
            settings={},
            facts={},
        ),
        identity=Identity(
            model_sha256=None,
            family=None,
            circuit=None,
            manifest_sha256=None,
            tokens_sha256=tokens_sha256(request),
        ),
        segments=plan_segments(request),
        records=(),
        cache_layout=CacheLayout(
            layout_id="rows",
            layer_stride=None,
            head_stride=4,
            token_stride=8,
            channel_stride=1,
            capacity=None,
        ),
        threads=1,
        mesh={},
        environment={},
        neutrality=Neutrality(
            status="neutral", control_equal=True, outputs_equal=True, mode="x", compared_outputs=1
        ),
    )


def _segment(body: Body, index: int, **changed: Any) -> Body:
    segments = list(body.segments)
    segments[index] = replace(segments[index], **changed)
    return replace(body, segments=tuple(segments))


BINDING: dict[str, Callable[[Body], Body]] = {
    "INPUT_TOKEN_MISMATCH": lambda b: _segment(b, 0, tokens=((9, 1, 2, 3),)),
    "RUNTIME_NOT_REPEATABLE": lambda b: replace(
        b, neutrality=replace(b.neutrality, control_equal=False, status="rejected")
    ),
    "CAPTURE_NOT_NEUTRAL": lambda b: replace(
        b, neutrality=replace(b.neutrality, status="rejected", outputs_equal=False)
    ),
}
SCHEDULE: dict[str, Callable[[Body], Body]] = {
    "POSITION_STATE_MISMATCH": lambda b: _segment(b, 1, positions=((0,),)),
    "CACHE_STATE_METADATA_MISMATCH": lambda b: _segment(b, 1, append_index=(3,)),
}


@pytest.mark.parametrize("name", BINDING)
@pytest.mark.contract("XRAY-44")
@pytest.mark.contract("XRAY-40")
def test_a_fault_of_binding_has_its_class(name: str) -> None:
    finding = binding_fault(BINDING[name](_body("subject")), _body("oracle"))
    assert finding is not None
    assert finding.failure_class == name
    assert binding_fault(_body("subject"), _body("oracle")) is None


@pytest.mark.parametrize(
    ("mine", "theirs", "same"),
    [
        ("llama", "phi3", False),
        ("qwen3", "qwen3moe", False),
        ("mistral", "llama", True),
        ("gemma3", "gemma3_text", True),
        ("llama", "a family of tomorrow", True),
        ("llama", None, True),
    ],
)
def test_known_families_that_differ_are_another_identity(
    mine: str, theirs: str | None, same: bool
) -> None:
    sides = [
        replace(_body(side), identity=replace(_body(side).identity, family=family))
        for side, family in (("subject", mine), ("oracle", theirs))
    ]
    finding = binding_fault(*sides)
    assert (finding is None) == same
    if finding is not None:
        assert finding.failure_class == "IDENTITY_MISMATCH"


def test_weights_that_differ_are_another_identity() -> None:
    sides = [
        replace(_body(side), identity=replace(_body(side).identity, model_sha256=digest * 64))
        for side, digest in (("subject", "a"), ("oracle", "b"))
    ]
    finding = binding_fault(*sides)
    assert finding is not None
    assert finding.failure_class == "IDENTITY_MISMATCH"
    unknown = replace(sides[1], identity=replace(sides[1].identity, model_sha256=None))
    assert binding_fault(sides[0], unknown) is None


@pytest.mark.parametrize("name", SCHEDULE)
@pytest.mark.contract("XRAY-38")
def test_a_fault_of_the_schedule_has_its_class(name: str) -> None:
    finding = schedule_fault(SCHEDULE[name](_body("subject")), _body("oracle"))
    assert finding is not None
    assert finding.failure_class == name
    assert schedule_fault(_body("subject"), _body("oracle")) is None


@pytest.mark.contract("XRAY-9")
@pytest.mark.contract("XRAY-38")
def test_another_segmentation_is_another_execution_before_anything_else() -> None:
    chunked = _body("oracle", replace(REQUEST, segments=(2, 4)))
    broken = replace(chunked, cache_layout=replace(chunked.cache_layout, token_stride=9))
    finding = schedule_fault(_body("subject"), broken)
    assert finding is not None
    assert finding.failure_class == "EXECUTION_POLICY_MISMATCH"
    assert "prefill 4 (reset)" in finding.because[0]
    assert "prefill 2 (reset) + prefill 2 (append)" in finding.because[0]


def test_other_strides_of_one_layout_are_a_cache_fault() -> None:
    oracle = _body("oracle")
    finding = schedule_fault(
        _body("subject"), replace(oracle, cache_layout=replace(oracle.cache_layout, token_stride=9))
    )
    assert finding is not None
    assert finding.failure_class == "CACHE_STATE_METADATA_MISMATCH"


def _record(**changed: Any) -> Record:
    record = Record(
        checkpoint_id="layer.1.mlp_norm_output",
        version=1,
        role=None,
        layer=1,
        phase="prefill",
        segment=0,
        tensor_path="missing.safetensors#x",
        dtype="fp32",
        shape=(1, 4, 8),
        axes=("B", "T", "D"),
        sha256="0" * 64,
        summary=Summary(min=None, max=None, mean=None, l2=None, nan=0, inf=0),
    )
    return replace(record, **changed)


METADATA: dict[str, Record] = {
    "CHECKPOINT_VERSION_MISMATCH": _record(version=2),
    "STORAGE_CONTRACT_MISMATCH": _record(dtype="bf16"),
    "DIAGNOSTIC_EXPORT_MAPPING": _record(dtype="i32"),
    "LAYOUT_MISMATCH": _record(shape=(1, 4, 9)),
}


class _Bindings:
    """A manifest of one checkpoint, and no calls."""

    class calls:
        programs = ()

    checkpoints = (
        msgspec.defstruct("Binding", [("checkpoint", Any), ("kernel_id", str), ("call", str)])(
            msgspec.defstruct("Point", [("name", str), ("role", Any)])("mlp_norm_output", None),
            "k",
            "c",
        ),
    )


@pytest.mark.parametrize("name", METADATA)
@pytest.mark.contract("XRAY-7")
@pytest.mark.contract("XRAY-40")
def test_a_fault_of_metadata_is_named_without_a_tensor(name: str) -> None:
    subject = replace(_body("subject"), records=(METADATA[name],))
    oracle = replace(_body("oracle"), records=(_record(),))
    finding = metadata_fault(_Bindings, subject, oracle)  # type: ignore[arg-type]
    assert finding is not None
    assert finding.failure_class == name
    assert finding.checkpoint_id == "layer.1.mlp_norm_output"


@pytest.mark.contract("XRAY-37")
def test_axes_in_another_order_are_no_fault() -> None:
    subject = replace(_body("subject"), records=(_record(),))
    other = _record(axes=("D", "B", "T"), shape=(8, 1, 4))
    oracle = replace(_body("oracle"), records=(other,))
    assert metadata_fault(_Bindings, subject, oracle) is None  # type: ignore[arg-type]


def test_a_checkpoint_that_only_the_oracle_makes_is_a_missing_producer() -> None:
    oracle = replace(
        _body("oracle"), records=(_record(checkpoint_id="layer.1.attention.q_norm_output"),)
    )
    finding = metadata_fault(_Bindings, _body("subject"), oracle)  # type: ignore[arg-type]
    assert finding is not None
    assert finding.failure_class == "CIRCUIT_PRODUCER_MISMATCH"


@pytest.mark.contract("XRAY-12")
@pytest.mark.contract("XRAY-61")
def test_a_backend_without_an_entry_is_a_finding() -> None:
    assert profile_entry("pytorch", "f32") is not None
    assert profile_entry("pytorch", "f64") is None
    finding = declared_fault(_Bindings, "f64", "pytorch", "f64", {})  # type: ignore[arg-type]
    assert finding is not None
    assert finding.failure_class == "MISSING_TOLERANCE_PROFILE"


@pytest.mark.contract("XRAY-8")
def test_an_oracle_in_another_dtype_is_refused_before_numbers() -> None:
    for arguments in (("f32", "pytorch", "bf16", {}), ("f32", "pytorch", "f32", {"bfloat16": 9})):
        finding = declared_fault(_Bindings, *arguments)  # type: ignore[arg-type]
        assert finding is not None
        assert finding.failure_class == "DIAGNOSTIC_EXPORT_MAPPING"


@pytest.mark.contract("XRAY-40")
def test_every_class_has_one_stage_owners_and_an_action() -> None:
    assert len(CLASSES) == 28
    for row in CLASSES.values():
        assert row.stage in STAGES
        assert row.owners
        assert set(row.owners) <= set(OWNERS)
        assert row.action
    with pytest.raises(AssertionError, match="never owned by kernel"):
        CLASSES["WEIGHT_BINDING_MISMATCH"].owner("kernel")
