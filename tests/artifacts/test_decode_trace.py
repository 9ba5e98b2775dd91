"""Decode traces, and the selection that they describe."""

import json

import msgspec
import numpy as np
import pytest

from cke.artifacts.check_trace import decision_class
from cke.artifacts.fingerprints import LIS_GREEDY, RAW_GREEDY
from cke.artifacts.reading import load_decode_trace
from cke.artifacts.selection import is_structural, select
from cke.artifacts.writing import encode
from tests.artifacts.documents import DELETE, PATH, PLAIN, document, put, refused, run

LIS = msgspec.structs.replace(PLAIN, policy=LIS_GREEDY)
FIRST = "decode_trace.0"

MUTATIONS = [
    ("kind", "run_report", "`$.kind`"),
    ("report", {}, "does not hold `report`"),
    (f"{FIRST}.step", 1, "expected 0, got 1"),
    ("decode_trace.1.step", 5, "expected 1, got 5"),
    (f"{FIRST}.phase", "decode", "expected first_decode, got decode"),
    ("decode_trace.1.phase", "first_decode", "expected decode, got first_decode"),
    (f"{FIRST}.selected_token_id", 61, "that of the selected token"),
    (f"{FIRST}.topk.0.is_selected", False, "one selected entry"),
    (f"{FIRST}.topk.1.is_selected", True, "one selected entry"),
    (f"{FIRST}.topk.1.adjusted_score", 99.0, "best adjusted score"),
    (f"{FIRST}.raw_score_selected", 1.0, "expected (1.0"),
    (f"{FIRST}.adjusted_score_selected", 1.0, "decision_margin"),
    (f"{FIRST}.runner_up_token_id", None, "or null in each"),
    (f"{FIRST}.runner_up_adjusted_score", None, "or null in each"),
    (f"{FIRST}.decision_margin", None, "or null in each"),
    (f"{FIRST}.decision_margin", 0.5, "decision_margin"),
    (f"{FIRST}.runner_up_token_id", 61, "topk"),
    (f"{FIRST}.structural_suppression_affected", 1, "expected `bool`"),
    (f"{FIRST}.repetition_penalty_changed_selection", "no", "expected `bool`"),
    (f"{FIRST}.selected_token_penalized", None, "expected `bool`"),
    (f"{FIRST}.suppressed_token_count", True, "expected `int`"),
    (f"{FIRST}.suppressed_token_count", -1, ">= 0"),
    (f"{FIRST}.penalized_token_count", 1.5, "expected `int`"),
    (f"{FIRST}.decision_class", "lucky", "decision_class"),
    (f"{FIRST}.decision_class", "repetition_penalty_shifted", "expected greedy"),
    (f"{FIRST}.structural_suppression_affected", True, "expected structural_suppression"),
    (f"{FIRST}.selected_token_penalized", True, "expected false"),
    (f"{FIRST}.topk", [], "topk"),
    (f"{FIRST}.topk.0.note", 1, "unknown field"),
    (f"{FIRST}.topk.0.raw_score", DELETE, "raw_score"),
    (f"{FIRST}.stop_reason", "model_eos", "final step only"),
    ("decode_trace.7.stop_reason", None, "stop_reason"),
    ("decode_trace.7.stop_reason", "none", "final step only"),
    (f"{FIRST}.prompt_text", "a", "prohibited"),
    (f"{FIRST}.logits", [1.0], "prohibited"),
    (f"{FIRST}.note", "/tmp/x", "absolute path"),
]


@pytest.mark.contract("LIS-62", "LIS-64", "LIS-65", "LIS-66", "LIS-67", "LIS-68", "LIS-69")
@pytest.mark.contract("LIS-70", "LIS-71", "LIS-72", "LIS-73", "LIS-74", "LIS-75", "LIS-76")
@pytest.mark.contract("LIS-77", "LIS-78", "LIS-79")
@pytest.mark.parametrize(("path", "value", "text"), MUTATIONS)
def test_trace_that_contradicts_itself_is_refused(path, value, text):
    load_decode_trace(document("decode_trace", PLAIN), PATH)
    refused(load_decode_trace, put(document("decode_trace", PLAIN), path, value), text)


@pytest.mark.contract("LIS-77", "LIS-75")
def test_sixth_or_repeated_choice_is_refused():
    sixth = document("decode_trace", PLAIN)
    top = sixth["decode_trace"][0]["topk"]
    top.append(top[-1] | {"token_id": 60, "adjusted_score": -99.0})
    refused(load_decode_trace, sixth, "topk")
    repeated = document("decode_trace", PLAIN)
    repeated["decode_trace"][0]["topk"][4]["token_id"] = repeated["decode_trace"][0]["topk"][3][
        "token_id"
    ]
    refused(load_decode_trace, repeated, "distinct token ids")


@pytest.mark.contract("LIS-70", "LIS-75")
def test_score_of_the_runner_up_is_that_of_the_second_choice():
    found = document("decode_trace", PLAIN)
    first = found["decode_trace"][0]
    first["runner_up_adjusted_score"] -= 1.0
    first["decision_margin"] += 1.0
    refused(load_decode_trace, found, "topk[1].adjusted_score`")


@pytest.mark.contract("LIS-69", "LIS-70", "LIS-75")
def test_choice_without_a_rival_and_a_tie_are_readable():
    alone = document("decode_trace", PLAIN)
    first = alone["decode_trace"][0]
    first["topk"] = first["topk"][:1]
    first |= dict.fromkeys(
        ("runner_up_token_id", "runner_up_adjusted_score", "decision_margin"), None
    )
    load_decode_trace(alone, PATH)
    rival = document("decode_trace", PLAIN)["decode_trace"][0]
    for name in ("runner_up_token_id", "runner_up_adjusted_score", "decision_margin"):
        first[name] = rival[name]
    refused(load_decode_trace, alone, "topk")
    decision = msgspec.to_builtins(choose([1.0, 3.0, 3.0]))
    tied = document("decode_trace", PLAIN)
    tied["decode_trace"] = [decision | {"stop_reason": "decode_limit"}]
    assert load_decode_trace(tied, PATH).value.decode_trace[0].decision_margin == 0


@pytest.mark.contract("LIS-63", "LIS-88")
def test_siblings_share_manifest_and_set_id():
    found = run()
    manifests = [item.manifest for item in (found.report, found.trace, found.layers)]
    assert manifests[0] == manifests[1] == manifests[2]
    ids = {item.artifact_set_id for item in (found.report, found.trace, found.layers)}
    assert len(ids) == 1


@pytest.mark.contract("LIS-76", "LIS-80")
def test_stop_reason_is_on_the_last_step_alone():
    text = encode(run(PLAIN).trace).decode()
    entries = json.loads(text)["decode_trace"]
    assert [entry.get("stop_reason") for entry in entries] == [None] * 7 + ["decode_limit"]
    assert "stop_reason" not in entries[0]
    assert not any(word in text for word in ('"time', '_ns"', '_ms"', "date"))


@pytest.mark.contract("LIS-74")
@pytest.mark.parametrize(
    ("suppression", "penalty", "name"),
    [
        (False, False, "greedy"),
        (True, False, "structural_suppression"),
        (False, True, "repetition_penalty_shifted"),
        (True, True, "structural_suppression"),
    ],
)
def test_suppression_takes_priority(suppression, penalty, name):
    assert decision_class(suppression, penalty) == name


def choose(logits, policy=LIS_GREEDY, suppressed=(), generated=()):
    return select(np.array(logits, np.float32), 0, policy, suppressed, generated)


@pytest.mark.contract("LIS-67", "LIS-68", "LIS-70")
def test_penalty_divides_positive_scores_and_multiplies_negative_ones():
    found = choose([2.4, 2.2, -1.0], generated=[0, 2])
    assert (found.selected_token_id, found.runner_up_token_id) == (1, 0)
    assert [item.adjusted_score for item in found.topk] == [2.20000005, 2.0, -1.20000005]
    assert [item.raw_score for item in found.topk] == [2.20000005, 2.4000001, -1.0]
    assert found.repetition_penalty_changed_selection
    assert not found.selected_token_penalized
    assert found.penalized_token_count == 2
    assert found.decision_class == "repetition_penalty_shifted"


@pytest.mark.contract("LIS-151")
@pytest.mark.parametrize(
    ("suppressed", "affected", "count"), [((0,), True, 1), ((4,), True, 1), ((6,), False, 1)]
)
def test_suppression_affects_a_step_when_it_takes_a_candidate(suppressed, affected, count):
    found = choose([7, 6, 5, 4, 3, 2, 1], suppressed=suppressed)
    assert found.structural_suppression_affected is affected
    assert found.suppressed_token_count == count
    ids = [item.token_id for item in found.topk]
    assert not set(suppressed) & {*ids, found.selected_token_id, found.runner_up_token_id}


@pytest.mark.contract("LIS-151")
def test_suppressed_tokens_are_those_of_the_vocabulary():
    found = choose([3, 2, 1], suppressed=(1, 3, 99))
    assert (found.selected_token_id, found.suppressed_token_count) == (0, 1)
    assert [item.token_id for item in found.topk] == [0, 2]


@pytest.mark.contract("LIS-71", "LIS-72")
def test_penalised_token_that_stays_best_is_said_to_be_penalised():
    found = choose([6, 1], generated=[0])
    assert (found.selected_token_id, found.selected_token_penalized) == (0, True)
    assert not found.repetition_penalty_changed_selection
    assert found.decision_class == "greedy"


@pytest.mark.contract("LIS-151", "LIS-160")
def test_raw_greedy_suppresses_and_penalises_nothing():
    found = choose([7, 6, 5], RAW_GREEDY, suppressed=[0], generated=[0])
    assert (found.selected_token_id, found.suppressed_token_count) == (0, 0)
    assert (found.penalized_token_count, found.structural_suppression_affected) == (0, False)


@pytest.mark.contract("LIS-77", "LIS-67")
def test_tie_goes_to_the_lowest_id():
    found = choose([1.0, 3.0, 3.0, 3.0], RAW_GREEDY)
    assert [item.token_id for item in found.topk] == [1, 2, 3, 0]
    assert found.decision_margin == 0


@pytest.mark.contract("LIS-75", "LIS-69")
@pytest.mark.parametrize("size", [1, 3, 5, 9])
def test_topk_is_as_long_as_the_vocabulary_allows(size):
    found = choose(range(size), RAW_GREEDY)
    assert len(found.topk) == min(size, 5)
    absent = [found.runner_up_token_id, found.runner_up_adjusted_score, found.decision_margin]
    assert [item is None for item in absent] == [size == 1] * 3


@pytest.mark.parametrize("logits", [[np.nan, 1.0], [np.inf, 1.0], [-np.inf, -np.inf]])
def test_scores_that_are_not_finite_select_nothing(logits):
    assert choose(logits, RAW_GREEDY) is None


@pytest.mark.contract("LIS-160")
@pytest.mark.parametrize(
    ("text", "structural"),
    [
        ("<|begin_of_text|>", True),
        ("<|reserved_special_token_7|>", True),
        ("<|python_tag|>", True),
        ("<|start_header_id|>", True),
        ("<|end_header_id|>", True),
        ("<|finetune_right_pad_id|>", True),
        ("<|step_id|>", True),
        ("<|eot_id|>", False),
        ("<<begin_of_text|>", False),
        ("<|begin_of_text>>", False),
    ],
)
def test_structural_tokens_are_told_by_their_text(text, structural):
    assert is_structural(text) is structural


@pytest.mark.contract("LIS-63", "LIS-67")
def test_trace_of_the_lis_policy_is_whole():
    found = load_decode_trace(document("decode_trace", LIS), PATH).value
    assert [entry.suppressed_token_count for entry in found.decode_trace] == [2] * 8
    assert any(entry.penalized_token_count for entry in found.decode_trace)
