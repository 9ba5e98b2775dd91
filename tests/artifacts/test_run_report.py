"""Run reports: shape, identity, digests, cache accounting; what readers refuse."""

import json

import msgspec
import pytest

from cke.artifacts.assemble import account_kv_cache, used_tokens
from cke.artifacts.engine import RunRequest
from cke.artifacts.execute import execute
from cke.artifacts.fingerprints import (
    LIS_GREEDY,
    RAW_GREEDY,
    canonical_sha,
    fnv1a64,
    policy_of,
    runtime_fingerprint,
    token_digest,
)
from cke.artifacts.markdown import render_markdown
from cke.artifacts.reading import load_run_report, read_run_report
from cke.artifacts.refusal import ArtifactError, UsageError
from cke.artifacts.seeded import SeededEngine
from cke.artifacts.writing import encode, write_artifact
from cke.errors import CkeError
from cke.schemas.run_report import KvShape
from tests.artifacts.documents import DELETE, PATH, PLAIN, REQUEST, document, put, refused, run
from tests.schemas.hostile import HOSTILE_DOCUMENTS, HOSTILE_FILES

PERF = msgspec.structs.replace(PLAIN, perf=True)


def case(path, value, text, request=PLAIN):
    return pytest.param(request, path, value, text, id=f"{path}={value!s:.20}")


MUTATIONS = [
    case("schema", "lis.execution_artifact/v2", "`$.schema`"),
    case("kind", "report", "`$.kind`"),
    case("manifest.retention_policy.raw_prompt_text", "kept", "raw_prompt_text"),
    case("manifest.retention_policy.absolute_paths", "kept", "absolute_paths"),
    case("manifest.retention_policy.generated_text", "kept", "generated_text"),
    case("manifest.binary", DELETE, "binary"),
    case("manifest.binary.fingerprint", DELETE, "fingerprint"),
    case("manifest.model.format", DELETE, "format"),
    case("manifest.model.family", DELETE, "family"),
    case("manifest.model.fingerprint", DELETE, "fingerprint"),
    case("manifest.config", DELETE, "config"),
    case("manifest.input.mode", "file", "mode"),
    case("manifest.input.fingerprint", DELETE, "fingerprint"),
    case("manifest.runtime.configured_context", DELETE, "configured_context"),
    case("manifest.runtime.thread_count", DELETE, "thread_count"),
    case("manifest.runtime.fingerprint", DELETE, "fingerprint"),
    case("manifest.backend.name", DELETE, "name"),
    case("manifest.backend.fingerprint", DELETE, "fingerprint"),
    case("manifest.binary.fingerprint.algorithm", "sha256", "algorithm"),
    case("manifest.binary.fingerprint.hex", "ABCDEF0123456789", "hex"),
    case("manifest.binary.fingerprint.hex", "aaaabbbbccccddd", "hex"),
    case("report.execution_status", "fine", "execution_status"),
    case("report.status_code", 1, "status_code"),
    case("report.stop_reason", "bored", "stop_reason"),
    case("report.output_mode", "image", "output_mode"),
    case("report.prompt_sequences", [], "prompt_sequences"),
    case("report.prompt_sequences.0.token_count", 4, "expected 32, got 24"),
    case("report.selected_token_count", 7, "selected_token_count"),
    case("report.selected_token_count", True, "selected_token_count"),
    case("report.selected_token_digest.hex", "0" * 16, "selected_token_digest"),
    case("report.emitted_token_ids.0", 63, "emitted_token_digest"),
    case("report.emitted_token_count", 9, "emitted_token_count"),
    case("report.perf_summary", {}, "prohibited"),
    case("report.prompt_text", "hello", "prohibited"),
    case("report.generated_text", "hello", "prohibited"),
    case("report.note", "/home/someone", "absolute path"),
    case("report.logits", [1.0], "prohibited"),
    case("report.layer_trace", [], "does not hold"),
    case("layer_trace", [], "does not hold"),
    case("report.perf", DELETE, "perf", request=PERF),
    case("report.kv_cache.scope", "global", "scope"),
    case("report.kv_cache.policy.eviction_free", False, "eviction_free"),
    case("report.kv_cache.policy.monotonic_growth", False, "monotonic_growth"),
    case("report.kv_cache.policy.paging", True, "paging"),
    case("report.kv_cache.policy.offload", True, "offload"),
    case("report.kv_cache.policy.sliding_window", True, "sliding_window"),
    case("report.kv_cache.policy.prefix_reuse", True, "prefix_reuse"),
    case("report.kv_cache.bytes_per_token", 65, "bytes_per_token"),
    case("report.kv_cache.allocated_bytes", 65, "allocated_bytes"),
    case("report.kv_cache.used_bytes", 65, "used_bytes"),
    case("report.kv_cache.storage_dtype", "bf16", "element_size"),
    case("report.kv_cache.shape.layer_count", DELETE, "layer_count"),
    case("report.kv_cache.shape.head_dim", 0, "head_dim"),
    case("report.kv_cache.shape.batch_size", 2, "batch_size"),
]


@pytest.mark.contract("LIS-1", "LIS-3", "LIS-4", "LIS-5", "LIS-6", "LIS-7", "LIS-8", "LIS-9")
@pytest.mark.contract("LIS-10", "LIS-11", "LIS-12", "LIS-14", "LIS-19", "LIS-27", "LIS-28")
@pytest.mark.contract("LIS-29", "LIS-30", "LIS-31", "LIS-33", "LIS-36", "LIS-37")
@pytest.mark.parametrize(("request_", "path", "value", "text"), MUTATIONS)
def test_report_that_contradicts_itself_is_refused(request_, path, value, text):
    original = document("run_report", request_)
    load_run_report(original, PATH)
    refused(load_run_report, put(original, path, value), text)


def test_refusal_names_its_code_and_path():
    broken = put(document("run_report"), "report.selected_token_count", 7)
    refused(
        load_run_report,
        broken,
        "artifact.json: `$.report.selected_token_count`: error[CKE862]: expected 8, got 7",
    )


@pytest.mark.contract("LIS-1", "LIS-2", "LIS-13", "LIS-144", "LIS-145")
def test_keys_and_their_order_are_frozen(tmp_path):
    write_artifact(run(PLAIN).report, tmp_path / "r.json")
    found = json.loads((tmp_path / "r.json").read_text())
    assert list(found) == ["schema", "kind", "artifact_set_id", "manifest", "report"]
    assert list(found["manifest"]) == [
        "retention_policy", "binary", "model", "config", "input", "runtime", "backend",
    ]  # fmt: skip
    assert list(found["manifest"]["runtime"]) == [
        "configured_context", "batch_size", "generation_limit", "thread_count",
        "layer_checkpoints_enabled", "layer_checkpoint_step", "diagnostics_enabled",
        "perf_enabled", "perf_per_token_enabled", "precision_path", "fingerprint",
    ]  # fmt: skip
    assert list(found["report"]) == [
        "execution_status", "status_code", "stop_reason", "output_mode", "prompt_sequences",
        "selected_token_count", "selected_token_digest", "selected_token_ids",
        "emitted_token_count", "emitted_token_digest", "emitted_token_ids", "kv_cache",
    ]  # fmt: skip
    assert list(found["report"]["kv_cache"]) == [
        "scope", "policy", "storage_dtype", "max_tokens", "used_tokens", "bytes_per_token",
        "allocated_bytes", "used_bytes", "shape",
    ]  # fmt: skip


@pytest.mark.contract("LIS-14")
def test_perf_is_there_when_it_is_enabled_and_only_then():
    assert "perf" in document("run_report", PERF)["report"]
    assert "perf" not in document("run_report", PLAIN)["report"]


@pytest.mark.contract("LIS-25", "LIS-26", "LIS-2", "LIS-145")
@pytest.mark.parametrize(
    "path", ["report.kv_cache", "artifact_set_id", "manifest.runtime.precision_path"]
)
def test_older_report_is_readable(path):
    older = put(document("run_report", PLAIN), path, DELETE)
    found = load_run_report(older, PATH)
    assert (found.value.schema, found.value.kind) == ("lis.execution_artifact/v1", "run_report")


@pytest.mark.contract("LIS-156", "LIS-38")
def test_additive_keys_are_accepted_and_preserved():
    wider = put(document("run_report", PLAIN), "report.kv_cache.note", {"a": 1})
    wider["future"] = [1, 2]
    assert load_run_report(wider, PATH).document == wider


@pytest.mark.contract("LIS-23")
def test_token_digest_has_its_known_answers():
    assert token_digest([]).hex == "a8c7f832281a39c5"
    assert token_digest(range(16)).hex == "4087027fc49c17d5"
    assert token_digest(range(16)).size_bytes == 128
    assert fnv1a64(b"a") == 0xAF63DC4C8601EC8C


@pytest.mark.contract("LIS-61")
def test_policies_have_their_published_hashes():
    assert RAW_GREEDY.sha256 == "fde534e94802f32b2aa573c90294fdaacb2bf2dd36e44b0e0e070d8edfd0724d"
    assert LIS_GREEDY.sha256 == "63f64c98586bc3cf31bbcccda5f6f354faba9ba47675780e77608309f7c912d0"


@pytest.mark.contract("LIS-29", "LIS-30", "LIS-31", "LIS-32", "LIS-35")
def test_accounting_of_the_example():
    shape = KvShape(layer_count=1, batch_size=2, kv_head_count=1, head_dim=4, element_size=4)
    block = account_kv_cache(shape, "f32", 128, used_tokens([5, 12]))
    assert (block.bytes_per_token, block.allocated_bytes, block.used_bytes) == (64, 8192, 768)
    assert (block.max_tokens, block.used_tokens, block.storage_dtype) == (128, 12, "f32")


@pytest.mark.contract("LIS-31", "LIS-33")
@pytest.mark.parametrize(("dtype", "size"), [("f32", 4), ("bf16", 2), ("f16", 2)])
def test_storage_has_the_size_of_its_elements(dtype, size):
    shape = KvShape(layer_count=6, batch_size=1, kv_head_count=1, head_dim=8, element_size=size)
    block = msgspec.to_builtins(account_kv_cache(shape, dtype, 11, 10))
    load_run_report(put(document("run_report", PLAIN), "report.kv_cache", block), PATH)
    block["shape"]["element_size"] = 6 - size
    refused(
        load_run_report,
        put(document("run_report", PLAIN), "report.kv_cache", block),
        f"element_size`: error[CKE862]: expected {size}",
    )


@pytest.mark.contract("LIS-29")
def test_every_dimension_counts_once():
    shape = KvShape(layer_count=3, batch_size=5, kv_head_count=7, head_dim=11, element_size=2)
    assert account_kv_cache(shape, "bf16", 13, 1).bytes_per_token == 3 * 5 * 2 * 7 * 11 * 2 == 4620


@pytest.mark.contract("LIS-37")
@pytest.mark.parametrize(
    ("change", "capacity", "used", "text"),
    [
        ({"layer_count": 0}, 8, 1, "a dimension of the KV cache is zero"),
        ({}, 0, 0, "a dimension of the KV cache is zero"),
        ({}, 8, 9, "the KV cache has 8 positions, got 9 used"),
        ({"layer_count": 1 << 58}, 8, 1, "the accounting of the KV cache overflows"),
        ({"layer_count": 1 << 55}, 8, 1, "the accounting of the KV cache overflows"),
    ],
)
def test_accounting_that_cannot_be_true_is_refused(change, capacity, used, text):
    shape = KvShape(layer_count=1, batch_size=2, kv_head_count=1, head_dim=4, element_size=4)
    with pytest.raises(ArtifactError, match=text):
        account_kv_cache(msgspec.structs.replace(shape, **change), "f32", capacity, used)


def test_accounting_below_the_overflow_is_allowed():
    shape = KvShape(layer_count=1 << 55, batch_size=2, kv_head_count=1, head_dim=4, element_size=4)
    assert account_kv_cache(shape, "f32", 7, 1).allocated_bytes < 1 << 64


@pytest.mark.contract("LIS-34")
def test_used_tokens_do_not_depend_on_the_number_of_layers():
    cache = run(PLAIN).report.report.kv_cache
    assert cache.shape.layer_count == 6
    assert cache.used_tokens == len(PLAIN.tokens) + PLAIN.generate - 1


@pytest.mark.contract("LIS-24")
def test_runtime_fingerprint_is_a_sum_of_what_is_hashed():
    manifest = run(PLAIN).report.manifest
    found = runtime_fingerprint(manifest, RAW_GREEDY, False)
    strings = (
        "seeded",
        "llama3_decoder",
        "tokens",
        "numpy",
        "raw_greedy",
        "repetition_penalty=1.0",
    )
    assert found.size_bytes == sum(len(text) + 1 for text in strings) + 10 * 8
    tagged = execute(SeededEngine(), msgspec.structs.replace(PLAIN, perf_tag="other"))
    assert tagged.report.manifest.runtime.fingerprint == found == manifest.runtime.fingerprint


@pytest.mark.contract("LIS-160")
@pytest.mark.parametrize("policy", [RAW_GREEDY, LIS_GREEDY])
def test_the_policy_that_ran_can_be_told_from_the_fingerprint(policy):
    manifest = run(msgspec.structs.replace(PLAIN, policy=policy)).report.manifest
    assert policy_of(manifest, False) == policy
    assert policy_of(manifest, True) is None


@pytest.mark.contract("LIS-18", "LIS-85")
def test_two_runs_differ_by_their_set_id_alone():
    first, second = (execute(SeededEngine(), REQUEST) for _ in range(2))
    ids = [item.report.artifact_set_id for item in (first, second)]
    assert ids[0] != ids[1]
    for kind in ("report", "trace", "layers"):
        one, two = (encode(getattr(item, kind)).decode() for item in (first, second))
        assert one.replace(ids[0], "") == two.replace(ids[1], "")
    assert render_markdown(first.report) == render_markdown(second.report)


@pytest.mark.contract("LIS-18")
def test_canonical_hash_does_not_see_key_order():
    found = document("run_report")
    assert canonical_sha(dict(reversed(list(found.items())))) == canonical_sha(found)
    assert canonical_sha(put(found, "report.status_code", 3)) != canonical_sha(
        document("run_report")
    )


@pytest.mark.contract("LIS-148")
@pytest.mark.parametrize("name", sorted(HOSTILE_DOCUMENTS))
def test_hostile_document_is_refused(name, tmp_path):
    raw, text = HOSTILE_DOCUMENTS[name]
    path = tmp_path / "artifact.json"
    path.write_bytes(raw)
    with pytest.raises(CkeError) as caught:
        read_run_report(path)
    assert text in str(caught.value)


@pytest.mark.contract("LIS-148")
@pytest.mark.parametrize("name", sorted(HOSTILE_FILES))
def test_hostile_file_is_refused(name, tmp_path):
    HOSTILE_FILES[name][0](tmp_path / "artifact.json")
    with pytest.raises(CkeError):
        read_run_report(tmp_path / "artifact.json")


@pytest.mark.contract("LIS-148")
def test_a_link_to_a_report_is_refused_and_the_report_is_not(tmp_path):
    write_artifact(run(PLAIN).report, tmp_path / "real.json")
    (tmp_path / "link.json").symlink_to("real.json")
    assert read_run_report(tmp_path / "real.json").value == run(PLAIN).report
    with pytest.raises(CkeError, match="symbolic"):
        read_run_report(tmp_path / "link.json")


@pytest.mark.contract("LIS-148")
@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({"future": {str(key): 0 for key in range(4097)}}, "at most 4096 keys"),
        ({"future": [0] * 65537}, "at most 65536 items"),
        ({"future": "x" * (4 << 20)}, "at most 4194304 bytes"),
    ],
)
def test_report_above_its_limits_is_refused(extra, text, tmp_path):
    path = tmp_path / "artifact.json"
    path.write_text(json.dumps(document("run_report", PLAIN) | extra))
    with pytest.raises(CkeError, match=text):
        read_run_report(path)


def test_context_limit_stops_a_run():
    report = execute(SeededEngine(), RunRequest(tokens=(3, 5), generate=9, context=4)).report
    assert report.report.stop_reason == "context_limit"
    assert report.report.kv_cache.used_tokens == 4


@pytest.mark.contract("LIS-153")
def test_precision_path_is_a_field_of_the_manifest():
    engine = SeededEngine()
    engine.facts = msgspec.structs.replace(engine.facts, precision_path="bf16")
    found = execute(engine, PLAIN).report.manifest.runtime
    assert (found.precision_path, run(PLAIN).report.manifest.runtime.precision_path) == (
        "bf16",
        "f32",
    )


@pytest.mark.contract("LIS-10")
@pytest.mark.parametrize(("text", "mode"), [(True, "text"), (False, "token_ids")])
def test_output_mode_is_what_was_shown(text, mode):
    request = msgspec.structs.replace(PLAIN, text=text)
    assert execute(SeededEngine(), request).report.report.output_mode == mode


@pytest.mark.contract("LIS-152", "LIS-33")
def test_storage_that_the_block_cannot_describe_is_refused():
    engine = SeededEngine()
    wide = msgspec.structs.replace(engine.facts.kv, dtype="f64")
    engine.facts = msgspec.structs.replace(engine.facts, kv=wide)
    with pytest.raises(UsageError, match=r"not one that report\.kv_cache can describe"):
        execute(engine, PLAIN)


@pytest.mark.contract("LIS-12")
def test_end_token_is_selected_and_not_emitted():
    first = run(PLAIN).report.report.selected_token_ids[0]
    report = execute(SeededEngine(), msgspec.structs.replace(PLAIN, stops=(first,))).report.report
    assert (report.stop_reason, report.selected_token_ids) == ("model_eos", (first,))
    assert report.emitted_token_ids == ()
