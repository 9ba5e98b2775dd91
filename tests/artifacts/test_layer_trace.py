"""Layer traces and their intra-layer extension: digests, recorders, and what readers refuse."""

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest

from cke.artifacts.capture import RECORD_BYTES, LayerRecorder, StageRecorder
from cke.artifacts.digests import StageContext, gather_span, layer_digest, stage_digest
from cke.artifacts.execute import execute
from cke.artifacts.reading import load_layer_trace
from cke.artifacts.refusal import ArtifactError
from cke.artifacts.seeded import SeededEngine, observation_of
from cke.artifacts.stages import (
    CLOSING_BOUNDARY,
    ENTRY_BOUNDARY,
    LLAMA,
    PUBLIC_NAMES,
    STAGE_IDS,
    family_of,
    layer_of,
    requested_layers,
)
from cke.artifacts.writing import write_artifact
from cke.schemas.layer_trace import LIS_LAYER_TRACE_HARD_MAX
from tests.artifacts.documents import DELETE, PATH, PLAIN, REQUEST, document, put, refused, run

LAYERS_ONLY = msgspec.structs.replace(REQUEST, intra_layer=None)
LAYOUT, INTRA = "checkpoint_layout", "intra_layer_checkpoint_layout"
ENTRY, STAGE = "layer_trace.1", "intra_layer_trace.3"
NAMES = list(STAGE_IDS)

MUTATIONS = [
    ("kind", "run_report", "`$.kind`"),
    *((f"{LAYOUT}.{key}", DELETE, key) for key in (
        "runtime_checkpoint_step", "total_layer_count", "requested_coordinates",
        "captured_coordinates", "missing_coordinates", "available_summary_fields",
        "digest_contract",
    )),
    (f"{LAYOUT}.ordering_semantics", "any", "ordering_semantics"),
    (f"{LAYOUT}.duplicate_coordinate_policy", "keep", "duplicate_coordinate_policy"),
    (f"{LAYOUT}.layout_version", 2, "layout_version"),
    (f"{LAYOUT}.total_layer_count", 32, "the layers of 32"),
    (f"{LAYOUT}.captured_coordinates", ["layer.1.output", "layer.0.output"], "ordered part"),
    (f"{LAYOUT}.missing_coordinates",
     [{"coordinate": "layer.0.output", "state": "not_captured", "detail": ""}], "the rest"),
    (f"{LAYOUT}.missing_coordinates", [{"coordinate": "layer.0.output"}], "state"),
    *((f"{ENTRY}.{key}", DELETE, key) for key in (
        "step", "phase", "name", "shape", "min", "max", "mean", "l2", "nan", "inf",
        "runtime_checkpoint_step", "layer_index", "tensor_role", "batch_index",
        "sequence_index", "stage_order", "execution_ordinal", "observed_dtype",
        "element_count", "available_summary_fields", "digest",
    )),
    (ENTRY, DELETE, "an entry for each captured coordinate"),
    (f"{ENTRY}.phase", "prefill", "expected decode"),
    (f"{ENTRY}.step", 2, "expected 3"),
    (f"{ENTRY}.batch_index", 1, "expected 0"),
    (f"{ENTRY}.sequence_index", 1, "expected 0"),
    (f"{ENTRY}.stage_order", 1, "expected 0"),
    (f"{ENTRY}.available_summary_fields", ["min"], "available_summary_fields"),
    (f"{ENTRY}.digest.tensor_role", "logits", "digest.tensor_role"),
    (f"{ENTRY}.runtime_checkpoint_step", 2, "expected 3"),
    (f"{ENTRY}.layer_index", 2, "expected 1"),
    (f"{ENTRY}.execution_ordinal", 0, "expected 1"),
    (f"{ENTRY}.element_count", 15, "expected 16"),
    (f"{ENTRY}.shape", [16, 1], "digest.shape"),
    (f"{ENTRY}.shape", [1, 1, 1, 1, 16], "shape"),
    (f"{ENTRY}.min", 99.0, "min, mean and max in order"),
    (f"{ENTRY}.l2", -1.0, "at least 0"),
    (f"{ENTRY}.mean", None, "aggregates where neither"),
    (f"{ENTRY}.nan", 1, "null aggregates"),
    (f"{ENTRY}.nan", True, "expected `int`"),
    (f"{ENTRY}.digest.algorithm", "md5", "algorithm"),
    (f"{ENTRY}.digest.version", "lis.checkpoint.intra_layer.fp32le/v1", "digest.version"),
    (f"{ENTRY}.digest.value", "sha256:12", "value"),
    (f"{ENTRY}.tensor_values", [1.0], "prohibited"),
    (f"{ENTRY}.name", "layer.1.attn_scale", "expected a layer's output"),
    (f"{ENTRY}.note", "/root/x", "absolute path"),
    (INTRA, DELETE, "or none of them"),
    ("intra_layer_trace", DELETE, "or none of them"),
    ("manifest.runtime.intra_layer_target_layer", DELETE, "all three intra-layer fields"),
    ("manifest.runtime.diagnostic_capture_profile", "legacy", "diagnostic_capture_profile"),
    (f"{INTRA}.layout_name", "other", "layout_name"),
    (f"{INTRA}.stage_taxonomy", "other", "stage_taxonomy"),
    (f"{INTRA}.model_family", "qwen3_dense_decoder", "model_family"),
    (f"{INTRA}.phase", "prefill", "phase"),
    (f"{INTRA}.full_tensor_payload_allowed", True, "full_tensor_payload_allowed"),
    (f"{INTRA}.requested_coordinates", NAMES[:16], "the 17 stages"),
    (f"{INTRA}.requested_coordinates", [*NAMES, "layer_output"], "the 17 stages"),
    (f"{INTRA}.requested_coordinates", [NAMES[1], NAMES[0], *NAMES[2:]], "the 17 stages"),
    (f"{INTRA}.requested_coordinates", ["x", *NAMES[1:]], "the 17 stages"),
    (f"{INTRA}.captured_coordinates", NAMES[:3], "the rest of the request"),
    (f"{INTRA}.note", 1, "unknown field"),
    (f"{INTRA}.target_layer", 3, "expected 3"),
    (STAGE, DELETE, "an entry for each captured coordinate"),
    (f"{STAGE}.stage_id", "layer_output", "an entry for each captured coordinate"),
    (f"{STAGE}.stage_order", 4, "expected 3"),
    (f"{STAGE}.execution_ordinal", 4, "expected 3"),
    (f"{STAGE}.runtime_checkpoint_step", 4, "expected 3"),
    (f"{STAGE}.layer_index", 1, "expected 2"),
    (f"{STAGE}.tensor_role", "layer_output", "expected key_projection_output"),
    (f"{STAGE}.available_summary_fields", ["min"], "available_summary_fields"),
    (f"{STAGE}.digest.tensor_role", "layer_output", "digest.tensor_role"),
    (f"{STAGE}.token_position", 9, "expected 5"),
    (f"{STAGE}.public_name", "K", "expected K projection output"),
    (f"{STAGE}.element_count", 7, "expected 8"),
    (f"{STAGE}.shape", [0], "shape"),
    (f"{STAGE}.samples", [1.0], "prohibited"),
    (f"{STAGE}.batch_index", 1, "batch_index"),
    (f"{STAGE}.digest.version", "lis.checkpoint.fp32le/v1", "digest.version"),
]  # fmt: skip


@pytest.mark.contract("LIS-86", "LIS-91", "LIS-92", "LIS-93", "LIS-95", "LIS-96", "LIS-98")
@pytest.mark.contract("LIS-100", "LIS-104", "LIS-106", "LIS-107", "LIS-108", "LIS-119")
@pytest.mark.contract("LIS-120", "LIS-121", "LIS-122")
@pytest.mark.parametrize(("path", "value", "text"), MUTATIONS)
def test_trace_that_contradicts_itself_is_refused(path, value, text):
    load_layer_trace(document("layer_trace"), PATH)
    refused(load_layer_trace, put(document("layer_trace"), path, value), text)


@pytest.mark.contract("LIS-99", "LIS-94")
def test_legacy_trace_is_readable():
    legacy = document("layer_trace", LAYERS_ONLY)
    del legacy[LAYOUT], legacy["artifact_set_id"]
    keys = ("step", "phase", "name", "shape", "min", "max", "mean", "l2", "nan", "inf")
    legacy["layer_trace"] = [{key: entry[key] for key in keys} for entry in legacy["layer_trace"]]
    assert load_layer_trace(legacy, PATH).value.checkpoint_layout is msgspec.UNSET


@pytest.mark.contract("LIS-94")
def test_family_that_is_not_localised_has_no_layout():
    engine = SeededEngine(family="qwen3_dense_decoder")
    trace = execute(engine, LAYERS_ONLY).layers
    assert trace.checkpoint_layout is msgspec.UNSET
    assert [entry.digest for entry in trace.layer_trace] == [msgspec.UNSET] * 6


@pytest.mark.contract("LIS-161")
def test_circuits_have_the_families_of_the_format():
    assert [family_of(name) for name in ("llama", "qwen3", "gemma2")] == [
        "llama3_decoder",
        "qwen3_dense_decoder",
        "gemma2_decoder",
    ]


@pytest.mark.contract("LIS-92")
@pytest.mark.parametrize(
    ("total", "layers"),
    [
        (16, (0, 1, 2, 4, 6, 8, 12, 15)),
        (32, (0, 1, 2, 4, 6, 8, 16, 24, 31)),
        (1, (0,)),
        (3, (0, 1, 2)),
    ],
)
def test_requested_layers_are_the_published_ones(total, layers):
    assert requested_layers(total) == layers


@pytest.mark.contract("LIS-117", "LIS-109", "LIS-118")
def test_intra_fields_are_bound_together_or_absent():
    with_intra, without = run().documents(), run(LAYERS_ONLY).documents()
    bound = {
        "intra_layer_checkpoints_enabled": True,
        "intra_layer_target_layer": 2,
        "diagnostic_capture_profile": "semantic_layer_and_intra_v1",
    }
    for kind in ("run_report", "decode_trace", "layer_trace"):
        assert bound.items() <= with_intra[kind]["manifest"]["runtime"].items()
        text = str(without[kind])
        assert not any(word in text for word in ("intra_layer", "semantic_layer_and_intra_v1"))
    other = run(msgspec.structs.replace(REQUEST, intra_layer=3))
    prints = [item.report.manifest.runtime.fingerprint for item in (run(), run(LAYERS_ONLY), other)]
    assert len({item.hex for item in prints}) == 3


@pytest.mark.contract("LIS-95", "LIS-120")
def test_summaries_have_the_seven_fields():
    found = document("layer_trace")
    for holder in (
        found[LAYOUT],
        found[INTRA],
        found["layer_trace"][0],
        found["intra_layer_trace"][0],
    ):
        assert holder["available_summary_fields"] == [
            "min", "max", "mean", "l2", "nan", "inf", "digest",
        ]  # fmt: skip


@pytest.mark.contract("LIS-138")
def test_boundaries_of_a_layer_have_their_published_names():
    assert (ENTRY_BOUNDARY, CLOSING_BOUNDARY) == ("selected_layer_entry", "parent:layer_output")


@pytest.mark.contract("LIS-124")
def test_layer_digests_do_not_change_with_the_intra_capture():
    pairs = zip(run().layers.layer_trace, run(LAYERS_ONLY).layers.layer_trace, strict=True)
    assert all(one == two for one, two in pairs)


@pytest.mark.contract("LIS-100", "LIS-96")
def test_layer_is_read_from_the_one_name_of_its_output():
    assert [layer_of(f"layer.{layer}.output") for layer in (0, 31)] == [0, 31]
    for name in ("layer.01.output", "layer.x.output", "layer.-1.output", "x.1.output",
                 "layer.1.input", "layer.1.output.2", "layer.1"):  # fmt: skip
        assert layer_of(name) is None


def bits(*words):
    return np.array(words, np.uint32).view(np.float32)


BASE = bits(0x3F800000, 0xC0200000, 1, 0x7F7FFFFF)
CONTEXT = StageContext(
    precision_path="f32",
    phase="decode",
    step=3,
    layer=8,
    stage_id="mlp_gate_projection",
    tensor_role="mlp_gate_projection",
    token_position=11,
    stage_order=13,
    execution_ordinal=13,
)
NORM = {
    "stage_id": "attention_norm_output",
    "tensor_role": "attention_norm_output",
    "stage_order": 1,
    "execution_ordinal": 1,
}
NANS = bits(0x7FC00001, 0xFFC12345, 0x7FFFFFFF, 0x7F800001)
GOLDEN = [
    ({}, [2, 2], BASE, "b87b96f63353fb16d193180220f2cca8e7c906f7cb88ff90bd82e09984f8f2fd"),
    ({}, [1], bits(0), "8bac4d9995a4fdf2671675161ee440bea5bbfb10f0af175735e1b74a61a08b5e"),
    ({}, [1], bits(1 << 31), "d6b7b9a12888541a3754318df1e23c4d2535e701167e8bf49788a378e29075bc"),
    (
        {},
        [2],
        bits(0x7F800000, 0xFF800000),
        "8b28af0d4e191488f74223c251b89beceb94995c5d382862bad5649358aaef14",
    ),
    ({}, [4], NANS, "b3297b811f9c0d8c9601152e2ff9f933e982274dc4942e5547232521a68a53c3"),
    ({}, [4], BASE, "0d0d459aea4398cbebc045e118813f32e08c2b39c166aa297e7fdbbae114e682"),
    (NORM, [2, 2], BASE, "c8cc44cf90c8003d1d031c4e896a7878b133ff6a87a510935229ee7b784f0e70"),
    (
        {"layer": 9},
        [2, 2],
        BASE,
        "8ffde18efea277b64a305797d1e28ea8760335ef41d54f4c112d11091ad1bec3",
    ),
    ({"step": 4}, [2, 2], BASE, "4887ed77898f20c1bf95b05301b6022c72e79984c8694588092ac404366d5d58"),
    (
        {"token_position": 12},
        [2, 2],
        BASE,
        "b746e5293168f5723238a7a0a9754f7fe7d874a08c5b171c3feea7e24c73764a",
    ),
    (
        {"phase": "prefill"},
        [2, 2],
        BASE,
        "946b770efd1168e5570cec70eaccc81ce165dcc5dc02155dc082ecc318a18adc",
    ),
    (
        {"precision_path": "bf16"},
        [2, 2],
        BASE,
        "4c6c99a3ecadaff8fafa6f93f06ef2518811fdd48a18aba8096412471f3d4a9f",
    ),
]


@pytest.mark.contract("LIS-97", "LIS-124")
@pytest.mark.parametrize(("change", "shape", "elements", "value"), GOLDEN)
def test_published_vector_reproduces(change, shape, elements, value):
    context = msgspec.structs.replace(CONTEXT, **change)
    assert stage_digest(elements, shape, context) == f"sha256:{value}"


@pytest.mark.contract("LIS-97")
def test_layer_digest_of_the_base_bits():
    assert layer_digest(BASE, [2, 2], "layer_output") == (
        "sha256:74f329b32746d384debcf890f7e420deecd20f8b7eb2306665162945b6f743af"
    )


@pytest.mark.contract("LIS-97", "LIS-122")
@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ([], "rank 1 to 4, got 0"),
        ([1, 1, 1, 2, 2], "rank 1 to 4, got 5"),
        ([2, 0], "no empty dimension"),
        ([5], "has 5 elements, got 4"),
        ([1 << 40, 1 << 40], "overflows"),
        ([5, ((1 << 62) + 1) // 5], "overflows"),
        ([1 << 31, 1 << 31], "has 4611686018427387904 elements, got 4"),
    ],
)
def test_digest_of_a_wrong_shape_is_refused(shape, text):
    for digest in (
        lambda: layer_digest(BASE, shape, "layer_output"),
        lambda: stage_digest(BASE, shape, CONTEXT),
    ):
        with pytest.raises(ArtifactError, match=text):
            digest()


@pytest.mark.contract("LIS-97")
@pytest.mark.parametrize("field", ["precision_path", "stage_id", "tensor_role"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "1 to 128 bytes"),
        ("x" * 129, "1 to 128 bytes"),
        ("a\nb", "control"),
        ("\ud800", "UTF-8"),
    ],
)
def test_identifier_that_cannot_be_hashed_is_refused(name, text, field):
    stage_digest(BASE, [4], msgspec.structs.replace(CONTEXT, **{field: "x" * 128}))
    with pytest.raises(ArtifactError, match=text):
        stage_digest(BASE, [4], msgspec.structs.replace(CONTEXT, **{field: name}))


@pytest.mark.contract("LIS-122")
def test_span_is_gathered_and_bounded():
    physical = np.arange(12, dtype=np.float32)
    assert gather_span(physical, [2, 3], [6, 2], 1).tolist() == [1, 3, 5, 7, 9, 11]
    assert gather_span(physical, [2, 3], [6, 2]).tolist() == [0, 2, 4, 6, 8, 10]
    with pytest.raises(ArtifactError, match="rank 1 to 4, got 0"):
        gather_span(physical, [], [])
    for strides, offset, text in (
        ([0, 1], 0, "one positive stride"),
        ([6], 0, "one positive stride"),
        ([6, 2], -1, "one positive stride"),
        ([6, 2], 2, "ends at element 12 of 12"),
    ):
        with pytest.raises(ArtifactError, match=text):
            gather_span(physical, [2, 3], strides, offset)


ROW = observation_of(np.ones((1, 4), np.float32))


def recorder(total=6, step=3):
    return LayerRecorder(LLAMA, total, step)


@pytest.mark.contract("LIS-105")
@pytest.mark.parametrize(
    ("appends", "text"),
    [
        ([(1, {}), (1, {})], "layer 1 was captured twice"),
        ([(2, {}), (1, {})], "layer 1 was captured out of order"),
        ([(6, {})], "layer 6 is not one of 6 layers"),
        ([(0, {"step": 2})], "expected checkpoints of step 3, got step 2"),
        ([(0, {"role": "logits"})], "expected checkpoints of `layer_output`, got `logits`"),
        ([(3, {})], "layer 3 was not asked for"),
    ],
)
def test_layer_that_does_not_belong_is_refused(appends, text):
    found = recorder(total=32 if text.endswith("asked for") else 6)
    for layer, change in appends:
        found.append(layer, ROW, **{"step": 3, **change})
    with pytest.raises(ArtifactError, match=text):
        found.layout()


@pytest.mark.contract("LIS-94", "LIS-101")
def test_family_that_is_not_localised_takes_every_layer_it_is_given():
    found = LayerRecorder("qwen3_dense_decoder", 32, 3)
    assert found.append(3, ROW, step=3).name == "layer.3.output"


@pytest.mark.contract("LIS-86", "LIS-95")
@pytest.mark.parametrize(("step", "phase", "rows"), [(0, "prefill", 2), (1, "decode", 1)])
def test_phase_and_extent_of_a_capture_are_those_of_its_step(step, phase, rows):
    found = run(msgspec.structs.replace(LAYERS_ONLY, checkpoint_step=step)).layers
    load_layer_trace(msgspec.to_builtins(found), PATH)
    assert {entry.phase for entry in found.layer_trace} == {phase}
    assert {entry.step for entry in found.layer_trace} == {step}
    assert {entry.shape for entry in found.layer_trace} == {(1, rows, 16)}


@pytest.mark.contract("LIS-105")
def test_model_without_layers_and_wrong_dtype_are_refused():
    with pytest.raises(ArtifactError, match="a model with layers"):
        recorder(total=0).layout()
    found = recorder()
    wide = msgspec.structs.replace(ROW, elements=np.ones((1, 4)))
    found.append(0, wide, step=3)
    with pytest.raises(ArtifactError, match="observed in fp32, got float64"):
        found.layout()


@pytest.mark.contract("LIS-102", "LIS-157")
def test_overflow_is_sticky():
    found = LayerRecorder("qwen3_dense_decoder", LIS_LAYER_TRACE_HARD_MAX + 2, 1)
    for layer in range(LIS_LAYER_TRACE_HARD_MAX):
        found.entries.append(
            msgspec.structs.replace(run().layers.layer_trace[0], name=f"layer.{layer}.output")
        )
    assert found.layout() is msgspec.UNSET
    found.append(LIS_LAYER_TRACE_HARD_MAX, ROW, step=1)
    found.entries.clear()
    assert found.append(0, ROW, step=1) is None
    with pytest.raises(ArtifactError, match="at most 8192 records"):
        found.layout()


def stage_recorder():
    return StageRecorder(layer=2, step=3, position=5, precision_path="f32")


@pytest.mark.contract("LIS-123", "LIS-122")
@pytest.mark.parametrize(
    ("stages", "text"),
    [
        (["attention_norm_output"], "expected `layer_input`"),
        (["layer_input", "layer_input"], "expected `attention_norm_output`, got `layer_input`"),
        ([*STAGE_IDS, "layer_output"], "expected `no stage`, got `layer_output`"),
        (STAGE_IDS[:16], "expected 17 resolved stages, got 16"),
    ],
)
def test_stages_are_resolved_in_order_and_in_full(stages, text):
    found = stage_recorder()
    for stage in stages:
        found.capture(stage, ROW)
    with pytest.raises(ArtifactError, match=text):
        found.layout()


@pytest.mark.contract("LIS-93", "LIS-119")
def test_stage_that_is_missing_has_a_state():
    found = stage_recorder()
    for stage in STAGE_IDS:
        if stage == "attention_scores":
            found.miss(stage, "unsupported", "fused")
        else:
            found.capture(stage, ROW)
    layout = found.layout()
    assert [item.coordinate for item in layout.missing_coordinates] == ["attention_scores"]
    assert len(layout.captured_coordinates) == 16
    assert len(PUBLIC_NAMES) == len(layout.requested_coordinates) == 17


@pytest.mark.contract("LIS-123")
def test_nothing_is_recorded_after_a_failure_and_the_first_one_is_told(monkeypatch):
    found = stage_recorder()
    found.capture("layer_input", ROW)
    found.capture("layer_output", ROW)
    found.capture("attention_norm_output", ROW)
    found.miss("attention_norm_output", "malformed", "")
    found.capture("logits", ROW)
    assert found.resolved == 1
    with pytest.raises(ArtifactError, match="expected `attention_norm_output`, got `layer_output`"):
        found.layout()
    assert RECORD_BYTES == 16384
    monkeypatch.setattr("cke.artifacts.capture.RECORD_BYTES", 100)
    large = stage_recorder()
    large.capture("layer_input", ROW)
    assert large.entries == []
    with pytest.raises(ArtifactError, match="`layer_input` is larger than 100 bytes"):
        large.layout()
    size = len(msgspec.json.encode(found.entries[0]))
    for bound, count in ((size, 1), (size - 1, 0)):
        monkeypatch.setattr("cke.artifacts.capture.RECORD_BYTES", bound)
        limited = stage_recorder()
        limited.capture("layer_input", ROW)
        assert len(limited.entries) == count


@pytest.mark.contract("LIS-122", "LIS-123")
def test_stage_that_cannot_be_hashed_is_refused():
    found = stage_recorder()
    found.capture("layer_input", msgspec.structs.replace(ROW, shape=(1, 5)))
    assert found.entries == []
    with pytest.raises(ArtifactError, match="has 5 elements, got 4"):
        found.layout()


@pytest.mark.contract("LIS-93")
def test_stage_that_is_out_of_order_is_not_missing_either():
    found = stage_recorder()
    found.miss("attention_scores", "unsupported", "")
    assert found.resolved == 0


def test_detail_is_bounded():
    found = stage_recorder()
    found.miss("layer_input", "malformed", "é" * 128)
    assert found.resolved == 1
    found = stage_recorder()
    found.miss("layer_input", "malformed", "é" * 129)
    with pytest.raises(ArtifactError, match="longer than 256 bytes"):
        found.layout()


@pytest.mark.contract("LIS-106")
@pytest.mark.parametrize(("value", "flags"), [(np.nan, (1, 0)), (np.inf, (0, 1))])
def test_values_that_are_not_finite_leave_null_aggregates(value, flags):
    entry = recorder().append(0, observation_of(np.array([[1, value]], np.float32)), step=3)
    assert (entry.min, entry.max, entry.mean, entry.l2) == (None,) * 4
    assert (entry.nan, entry.inf) == flags
    finite = recorder().append(0, observation_of(np.array([[3, -4]], np.float32)), step=3)
    assert (finite.min, finite.max, finite.mean, finite.l2) == (-4, 3, -0.5, 5)
    assert math.isclose(finite.l2, 5)


@pytest.mark.contract("LIS-106")
@pytest.mark.parametrize("path", [ENTRY, STAGE])
def test_entry_with_a_flag_and_null_aggregates_is_readable(path):
    found = document("layer_trace")
    for name in ("min", "max", "mean", "l2"):
        put(found, f"{path}.{name}", None)
    refused(load_layer_trace, found, "aggregates where neither nan nor inf is flagged")
    load_layer_trace(put(found, f"{path}.inf", 1), PATH)


@pytest.mark.contract("LIS-102")
def test_failed_capture_leaves_the_file_as_it_was(tmp_path):
    target = tmp_path / "layers.json"
    target.write_text("old")
    broken = msgspec.structs.replace(run().layers, layer_trace=())
    with pytest.raises(ArtifactError, match=r"the layer_trace is not whole: \$\.layer_trace"):
        write_artifact(broken, target)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [Path(target)]


@pytest.mark.contract("LIS-86")
def test_layer_trace_without_checkpoints_is_not_made():
    assert run(PLAIN).layers is None
