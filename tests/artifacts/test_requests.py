"""What is refused before inference."""

import msgspec
import pytest

from cke.artifacts.engine import RunRequest
from cke.artifacts.execute import execute
from cke.artifacts.fingerprints import LIS_GREEDY, RAW_GREEDY, ids_sha
from cke.artifacts.reading import load_run_report, read_binding
from cke.artifacts.refusal import UsageError
from cke.artifacts.seeded import SeededEngine
from cke.errors import CkeError
from cke.schemas.run_report import PrefixBinding
from tests.artifacts.documents import PATH, PLAIN, REQUEST, document, put, refused

SHA = "ab" * 32


def binding(forced=(9, 10, 11), policy=RAW_GREEDY, **change):
    found = PrefixBinding(
        mode="injected_selected_token_prefix_v1",
        token_count=len(forced),
        token_ids_sha256=ids_sha(forced),
        prompt_token_count=3,
        selection_policy=policy.name,
        selection_policy_sha256=policy.sha256,
        source_pass0_artifact_sha256=SHA,
        source_original_run_report_sha256=SHA,
        source_pass1_artifact_sha256=SHA,
        source_localization_ref_sha256=SHA,
    )
    return msgspec.structs.replace(found, **change)


FORCED = msgspec.structs.replace(
    PLAIN, forced=(9, 10, 11), generate=1, binding=binding(), checkpoint_step=4
)

REFUSED = [
    (PLAIN, {"tokens": ()}, "expected at least one prompt token"),
    (PLAIN, {"generate": 0}, "expected --generate of at least 1"),
    (PLAIN, {"tokens": (64,)}, "token 64 is not one of 64"),
    (PLAIN, {"context": 2}, "--context 2 is too small for 3 tokens"),
    (FORCED, {"context": 5}, "--context 5 is too small for 6 tokens"),
    (PLAIN, {"batch": 0}, "expected --batch of at least 1"),
    (REQUEST, {"checkpoint_step": -1}, "a step of at least 0"),
    (REQUEST, {"checkpoint_step": 9}, "--layer-checkpoints 9 is past the last step"),
    (REQUEST, {"checkpoint_step": 0}, "expected a step above 0"),
    (REQUEST, {"checkpoint_step": None}, "requires --layer-checkpoints"),
    (REQUEST, {"batch": 2}, "requires a batch size of 1"),
    (REQUEST, {"intra_layer": -1}, "expects a layer from 0 to 5, got -1"),
    (REQUEST, {"intra_layer": 6}, "expects a layer from 0 to 5, got 6"),
    (FORCED, {"forced": (9, 10, 11, 12)}, "the binding's token_count is 3, the run's is 4"),
    (FORCED, {"forced": (9, 10, 12)}, "the binding's token_ids_sha256"),
    (FORCED, {"tokens": (3, 5)}, "the binding's prompt_token_count is 3, the run's is 2"),
    (FORCED, {"policy": LIS_GREEDY}, "the binding's selection_policy is raw_greedy"),
    (
        FORCED,
        {"binding": binding(selection_policy_sha256="0" * 64)},
        "the binding's selection_policy_sha256 is 00",
    ),
    (FORCED, {"forced": (), "checkpoint_step": None}, "requires --forced-prefix"),
    (FORCED, {"forced": (1,) * 65}, "at most 64 tokens"),
]


@pytest.mark.contract("LIS-57", "LIS-59", "LIS-110", "LIS-111", "LIS-112", "LIS-113", "LIS-115")
@pytest.mark.parametrize(("request_", "change", "text"), REFUSED)
def test_request_that_cannot_be_served_is_refused(request_, change, text):
    execute(SeededEngine(), request_)
    with pytest.raises(UsageError) as caught:
        execute(SeededEngine(), msgspec.structs.replace(request_, **change))
    assert str(caught.value).startswith("lis: artifact error: ")
    assert caught.value.diagnostics[0].code == "CKE860"
    assert text in str(caught.value)


@pytest.mark.contract("LIS-57", "LIS-59")
def test_request_at_a_bound_is_served():
    for change in (
        {"tokens": (3, 5), "checkpoint_step": 0},
        {"tokens": (3,), "checkpoint_step": 1},
    ):
        assert execute(SeededEngine(), msgspec.structs.replace(PLAIN, **change)).layers
    longest = (1,) * 64
    request = msgspec.structs.replace(PLAIN, forced=longest, binding=binding(longest))
    found = execute(SeededEngine(), request).report.forced_prefix
    assert found.token_count == 64


@pytest.mark.contract("LIS-57")
def test_context_that_just_holds_prompt_and_prefix_is_accepted():
    found = execute(SeededEngine(), msgspec.structs.replace(FORCED, context=6)).report.report
    assert (found.kv_cache.max_tokens, found.kv_cache.used_tokens) == (6, 6)


@pytest.mark.contract("LIS-114")
def test_family_without_stages_is_refused():
    with pytest.raises(UsageError, match="does not support the family qwen3_dense_decoder"):
        execute(SeededEngine(family="qwen3_dense_decoder"), REQUEST)


@pytest.mark.contract("LIS-115")
@pytest.mark.parametrize("layer", [0, 5])
def test_first_and_last_layer_are_accepted(layer):
    found = execute(SeededEngine(), msgspec.structs.replace(REQUEST, intra_layer=layer))
    assert found.layers.intra_layer_checkpoint_layout.target_layer == layer


@pytest.mark.contract("LIS-152")
def test_state_that_the_block_cannot_describe_is_refused():
    engine = SeededEngine()
    engine.facts = msgspec.structs.replace(engine.facts, kv=None)
    with pytest.raises(UsageError, match=r"not one that report\.kv_cache can describe"):
        execute(engine, PLAIN)


@pytest.mark.contract("LIS-58", "LIS-59", "LIS-60", "LIS-61")
def test_applied_prefix_is_described_and_its_tokens_are_not_kept():
    report = execute(SeededEngine(), FORCED).report
    found = msgspec.to_builtins(report.forced_prefix)
    assert len(found) == 16
    assert found["token_ids_sha256"] == ids_sha((9, 10, 11))
    assert (found["context_position"], found["runtime_checkpoint_step"]) == (6, 4)
    assert "[9,10,11]" not in msgspec.json.encode(report).decode().replace(" ", "")
    assert report.report.selected_token_count == 1


@pytest.mark.contract("LIS-61")
@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("mode", "other"),
        ("applied", False),
        ("token_count", 0),
        ("token_count", 65),
        ("token_count", 2),
        ("prefix_start", 1),
        ("prefix_end_exclusive", 4),
        ("target_generated_token_step", 4),
        ("runtime_checkpoint_step", 3),
        ("prompt_token_count", 4),
        ("context_position", 7),
        ("selection_policy", "lis_policy_modified_greedy_v1"),
        ("selection_policy_sha256", "0" * 64),
        ("extra", 1),
    ],
)
def test_prefix_that_contradicts_itself_is_refused(path, value):
    load_run_report(document("run_report", FORCED), PATH)
    refused(load_run_report, put(document("run_report", FORCED), f"forced_prefix.{path}", value))


@pytest.mark.contract("LIS-61")
def test_prompt_of_a_prefix_is_that_of_the_report():
    found = put(document("run_report", FORCED), "forced_prefix.prompt_token_count", 4)
    put(found, "forced_prefix.context_position", 7)
    refused(load_run_report, found, "prompt_token_count`: error[CKE862]: expected 3, got 4")


@pytest.mark.contract("LIS-58")
def test_binding_file_has_exact_keys_and_a_bound(tmp_path):
    path = tmp_path / "binding.json"
    path.write_bytes(msgspec.json.encode(binding()))
    assert read_binding(path) == binding()
    for change in ({"note": 1}, {"token_count": True}, {"token_count": None}):
        path.write_bytes(msgspec.json.encode(msgspec.to_builtins(binding()) | change))
        with pytest.raises(CkeError, match=r"binding\.json"):
            read_binding(path)
    path.write_bytes(msgspec.json.encode(binding()) + b" " * (16 << 10))
    with pytest.raises(CkeError, match="at most 16384 bytes"):
        read_binding(path)


def test_the_same_tokens_forced_give_the_same_choice():
    free = execute(SeededEngine(), PLAIN).report.report.selected_token_ids
    forced = RunRequest(tokens=PLAIN.tokens, forced=free[:3], generate=1)
    assert execute(SeededEngine(), forced).report.report.selected_token_ids == free[3:4]
