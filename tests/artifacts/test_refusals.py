"""Refusals that need more than one change to be reached."""

import json

import msgspec
import pytest

from cke.artifacts.execute import execute
from cke.artifacts.reading import (
    load_decode_trace,
    load_layer_trace,
    load_run_report,
    read_decode_trace,
    read_layer_trace,
)
from cke.artifacts.refusal import ArtifactError, UsageError
from cke.artifacts.seeded import SeededEngine
from cke.errors import CkeError
from tests.artifacts.documents import DELETE, PATH, PLAIN, REQUEST, document, put, refused, run

LAYERS_ONLY = msgspec.structs.replace(REQUEST, intra_layer=None)
LAYOUT, INTRA = "checkpoint_layout", "intra_layer_checkpoint_layout"
FIELDS = ["min", "max", "mean", "l2", "nan", "inf"]


def changed(kind, *changes):
    found = document(kind)
    for path, value in changes:
        put(found, path, value)
    return found


BOUND = (
    "intra_layer_checkpoints_enabled",
    "intra_layer_target_layer",
    "diagnostic_capture_profile",
)
UNBOUND = [(f"manifest.runtime.{name}", DELETE) for name in BOUND]

LAYERS = [
    ([(f"{LAYOUT}.digest_contract.version", "lis.checkpoint.intra_layer.fp32le/v1")],
     f"`$.{LAYOUT}.digest_contract.version`"),
    ([(f"{LAYOUT}.available_summary_fields", FIELDS)], f"`$.{LAYOUT}.available_summary_fields`"),
    ([(f"{INTRA}.digest_contract.version", "lis.checkpoint.fp32le/v1")],
     f"`$.{INTRA}.digest_contract.version`"),
    ([(f"{INTRA}.available_summary_fields", FIELDS)], f"`$.{INTRA}.available_summary_fields`"),
    ([("manifest.runtime.layer_checkpoint_step", 4)], f"`$.{LAYOUT}.runtime_checkpoint_step`"),
    ([("manifest.runtime.intra_layer_target_layer", 3)], f"`$.{INTRA}.target_layer`"),
    ([(LAYOUT, DELETE)], "the intra-layer capture to be bound"),
    (UNBOUND, "the intra-layer capture to be bound"),
    ([*UNBOUND, (INTRA, DELETE)], "an intra-layer layout, its trace and its manifest, or none"),
    ([(INTRA, DELETE), ("intra_layer_trace", DELETE)], "its manifest, or none of them"),
    ([("manifest.runtime.layer_checkpoint_step", 4), (f"{LAYOUT}.runtime_checkpoint_step", 4),
      *((f"layer_trace.{index}.{name}", 4) for index in range(6)
        for name in ("step", "runtime_checkpoint_step"))],
     f"`$.{INTRA}.runtime_checkpoint_step`"),
    ([("manifest.runtime.layer_checkpoints_enabled", False)],
     "expected layer checkpoints with the intra-layer capture"),
]  # fmt: skip


@pytest.mark.contract("LIS-92", "LIS-93", "LIS-96", "LIS-109", "LIS-122")
@pytest.mark.parametrize(("changes", "text"), LAYERS)
def test_layout_that_does_not_fit_its_trace_is_refused(changes, text):
    refused(load_layer_trace, changed("layer_trace", *changes), text)


@pytest.mark.contract("LIS-102")
def test_trace_of_more_records_than_the_bound_is_refused():
    entry = document("layer_trace")["layer_trace"][0]
    legacy = changed("layer_trace", (LAYOUT, DELETE), ("layer_trace", [entry] * 8193))
    refused(load_layer_trace, legacy, "expected at most 8192 records, got 8193")
    full = document("layer_trace", LAYERS_ONLY)
    del full[LAYOUT]
    full["layer_trace"] = [entry] * 8192
    load_layer_trace(full, PATH)


@pytest.mark.contract("LIS-106")
def test_row_of_zeros_has_a_norm_of_zero():
    zeros = [(f"layer_trace.1.{name}", 0.0) for name in ("min", "max", "mean", "l2")]
    load_layer_trace(changed("layer_trace", *zeros), PATH)


@pytest.mark.contract("LIS-37")
def test_accounting_beyond_the_cache_or_the_integers_is_refused():
    cache = document("run_report")["report"]["kv_cache"]
    used = cache["max_tokens"] + 1
    beyond = changed(
        "run_report",
        ("report.kv_cache.used_tokens", used),
        ("report.kv_cache.used_bytes", used * cache["bytes_per_token"]),
    )
    refused(load_run_report, beyond, f"expected at most {used - 1}, got {used}")
    full = changed(
        "run_report",
        ("report.kv_cache.used_tokens", cache["max_tokens"]),
        ("report.kv_cache.used_bytes", cache["allocated_bytes"]),
    )
    load_run_report(full, PATH)
    large = changed("run_report", ("report.kv_cache.shape.layer_count", 1 << 60))
    refused(load_run_report, large, "expected a product below 2^64")
    exact = changed(
        "run_report",
        ("report.kv_cache.shape.layer_count", 1 << 50),
        ("report.kv_cache.bytes_per_token", 1 << 56),
        ("report.kv_cache.max_tokens", 1 << 8),
    )
    refused(load_run_report, exact, "expected a product below 2^64")


@pytest.mark.contract("LIS-70", "LIS-151")
def test_margin_below_zero_and_suppression_without_tokens_are_refused():
    found = document("decode_trace")
    first = found["decode_trace"][0]
    first["runner_up_adjusted_score"] = first["adjusted_score_selected"] + 1
    first["decision_margin"] = -1.0
    refused(load_decode_trace, found, "decision_margin`: error[CKE862]: expected at least 0")
    none = changed(
        "decode_trace",
        ("decode_trace.0.structural_suppression_affected", True),
        ("decode_trace.0.decision_class", "structural_suppression"),
    )
    refused(load_decode_trace, none, "structural_suppression_affected")


@pytest.mark.contract("LIS-1")
def test_document_that_is_no_object_is_refused():
    refused(load_run_report, [1], "`$`: error[CKE862]: expected an object")


@pytest.mark.contract("LIS-57")
def test_checkpoint_step_that_the_run_never_reaches_is_refused():
    prefill = msgspec.structs.replace(PLAIN, tokens=(3,), checkpoint_step=0)
    with pytest.raises(UsageError, match="a prompt of at least two tokens"):
        execute(SeededEngine(), prefill)
    first = run(PLAIN).report.report.selected_token_ids[0]
    early = msgspec.structs.replace(REQUEST, stops=(first,))
    with pytest.raises(ArtifactError, match="the run ended before checkpoint step 3"):
        execute(SeededEngine(), early)


@pytest.mark.contract("LIS-56")
def test_folder_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    from cke.artifacts.writing import write_artifact

    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(ArtifactError, match="its folder is not writable"):
        write_artifact(run(PLAIN).report, tmp_path / "r.json")
    assert list(tmp_path.iterdir()) == []


LOADERS = {
    "run_report": load_run_report,
    "decode_trace": load_decode_trace,
    "layer_trace": load_layer_trace,
}


@pytest.mark.contract("LIS-109", "LIS-90")
@pytest.mark.parametrize("kind", LOADERS)
def test_capture_that_a_manifest_binds_in_part_is_refused_in_every_sibling(kind):
    load = LOADERS[kind]
    load(document(kind), PATH)
    for field in BOUND:
        part = changed(kind, (f"manifest.runtime.{field}", DELETE))
        refused(load, part, "expected all three intra-layer fields or none")
    alone = changed(kind, ("manifest.runtime.layer_checkpoints_enabled", False))
    refused(load, alone, "expected layer checkpoints with the intra-layer capture")


@pytest.mark.contract("LIS-122", "LIS-148")
@pytest.mark.parametrize("read", [read_decode_trace, read_layer_trace])
def test_trace_is_read_up_to_its_bound(read, tmp_path):
    path = tmp_path / "trace.json"
    kind = "decode_trace" if read is read_decode_trace else "layer_trace"
    text = json.dumps(document(kind))
    path.write_text(text.ljust(2 << 20))
    assert read(path).document == document(kind)
    path.write_text("".ljust((16 << 20) + 1))
    with pytest.raises(CkeError, match="at most 16777216 bytes"):
        read(path)


@pytest.mark.contract("LIS-1", "LIS-62", "LIS-86")
@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("key", ["schema", "kind"])
def test_document_without_its_identity_is_refused(kind, key):
    expected = {"schema": "lis.execution_artifact/v1", "kind": kind}[key]
    text = f"`$.{key}`: error[CKE862]: expected `{expected}`, got `None`"
    refused(LOADERS[kind], changed(kind, (key, DELETE)), text)


@pytest.mark.contract("LIS-19", "LIS-60", "LIS-79", "LIS-98", "LIS-104")
@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize(
    "key",
    [
        "tensor_payload", "tensor_values", "values", "samples", "tensor_samples", "prompt",
        "prompt_text", "raw_prompt_text", "generated_text", "absolute_path", "absolute_paths",
        "model_path", "logits", "logits_dump", "activations", "activation_dump", "telemetry",
        "dashboard", "perf_summary", "forced_prefix_token_ids", "forced_tokens",
    ],
)  # fmt: skip
def test_payload_is_refused_wherever_it_stands(kind, key):
    for path in (f"manifest.{key}", key):
        refused(LOADERS[kind], changed(kind, (path, None)), f"`{key}` is prohibited in an artifact")
    refused(LOADERS[kind], changed(kind, ("note", [{key: 1}])), f"`$.note[0].{key}`")


@pytest.mark.contract("LIS-19", "LIS-64", "LIS-79")
@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("run_report", ("layer_trace", "decode_trace", "intra_layer_trace")),
        ("decode_trace", ("report", "layer_trace", "intra_layer_trace")),
        ("layer_trace", ("report", "decode_trace")),
    ],
)
def test_artifact_does_not_hold_what_its_siblings_are_for(kind, keys):
    for key in keys:
        refused(LOADERS[kind], changed(kind, (key, [])), f"a {kind} does not hold `{key}`")
    if kind == "run_report":
        for key in keys:
            inner = changed(kind, (f"report.{key}", []))
            refused(LOADERS[kind], inner, f"`$.report.{key}`")


@pytest.mark.contract("LIS-17", "LIS-78", "LIS-104")
@pytest.mark.parametrize("kind", LOADERS)
def test_text_that_is_a_path_is_refused(kind):
    for text in ("/root/x", "\\\\host\\x", "C:\\x"):
        refused(LOADERS[kind], changed(kind, ("note", text)), "expected no absolute path")
    for text in ("a/b", "C:x", "x"):
        LOADERS[kind](changed(kind, ("note", text)), PATH)
