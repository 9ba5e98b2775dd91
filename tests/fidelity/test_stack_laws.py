"""Laws 6, 7 and 10, and the receipts of 11, 12, 13, 16 and 17, one change at a time."""

import copy
import shutil
from pathlib import Path

import msgspec
import pytest

from cke.errors import CkeError
from cke.fidelity.artifact import checksum_problems, publish, write_checksums
from cke.fidelity.capture import probe_problems
from cke.fidelity.capture_reader import Capture, read_manifest
from cke.fidelity.checks.evidence import Evidence
from cke.fidelity.checks.weights import cell_problems, family_problems, worst_over_workers
from cke.fidelity.fields import KEY, key_of, rank_key, section_of
from cke.fidelity.freeze import freeze
from cke.fidelity.gather import gather
from tests.fidelity.conftest import TIMES, Tiny, judged, lines_of
from tests.fidelity.mutation import Change, assert_fails, both, put, swap
from tests.fidelity.test_measurement_laws import APPROVAL, rendered

PARAMETERS = {
    "quantization_parameters": {"group": 32},
    "layer_assignments": {},
    "acceptance_thresholds": {},
}
LAW_6 = [
    ("6.1", swap("environment", None)),
    *(("6.1", put("environment", name, "")) for name in ("host", "kernel", "interpreter")),
    ("6.1", put("environment", "packages", {})),
    ("6.1", put("environment", "checkpoints", {})),
    ("6.1", put("environment", "processor")),
    *(("6.2", put("environment", "commit", value)) for value in ("", None, "unknown")),
    ("6.2", put("environment", "versions.jax", None)),
    ("6.2", put("environment", "versions.cke", "unknown")),
    ("6.3", put("environment", "checkpoints", {"other": "0" * 64})),
    ("6.9", put("live", "commit", "0" * 40)),
    ("6.9", put("live", "commit")),
    ("6.12", put("environment", "stack_profile", "other")),
    ("6.12", put("environment", "host", "absent: not asked for")),
]
LAW_7 = [
    ("7.1", put("manifest", "replay_probe", None)),
    ("7.2", put("manifest", "replay_probe.identical", False)),
    ("7.2", put("manifest", "replay_probe.num_differing", 1)),
    ("7.2", put("manifest", "replay_probe.max_abs", 1e-9)),
    ("7.2", put("manifest", "replay_probe.capture_sha256", "0" * 64)),
    ("7.2", put("manifest", "replay_probe.positions", 0)),
]
LAW_10 = [
    *(
        ("10.1", put("report", name, None))
        for name in KEY
        if name
        in ("suite_id", "context_length", "rows", "kv_cache_dtype", "kld_vocab_size", "stride")
    ),
    ("10.4", put("report", "suite_id")),
    ("10.6", put("report", "runtime.numerics_digest")),
    ("10.6", put("live", "numerics_digest", "0" * 64)),
    ("10.8", put("report", "threshold", 0.01)),
    (
        "10.9",
        lambda e: msgspec.structs.replace(e, page=f"{e.page}\n## End\n\nThe accuracy is kept.\n"),
    ),
]
LAW_16_17 = [
    ("16.1", put("report", "student_weights_sha256")),
    ("16.1", put("report", "student_weights_sha256", "short")),
    ("16.2", swap("inspection", None)),
    ("16.2", put("inspection", "student_weights_sha256", "0" * 64)),
    ("17.1", put("report", "quantization_substitutions")),
    ("17.1", put("report", "quantization_substitutions", None)),
    ("17.2", both(put("inspection", "walked", False), put("inspection", "routed", True))),
    ("17.2", put("inspection", "layers.0.as_exported", False)),
    ("17.15", put("inspection", "walked", False)),
    ("17.15", put("inspection", "recorded", "afterwards")),
    ("17.15", both(put("inspection", "walked", False), put("inspection", "quantized"))),
]


@pytest.mark.contract(
    "LAW-6.1",
    "LAW-6.2",
    "LAW-6.3",
    "LAW-6.9",
    "LAW-6.12",
    "LAW-7.1",
    "LAW-7.2",
    "LAW-7.5",
    "LAW-10.1",
    "LAW-10.4",
    "LAW-10.6",
    "LAW-10.8",
    "LAW-10.9",
    "LAW-16.1",
    "LAW-16.2",
    "LAW-17.1",
    "LAW-17.2",
    "LAW-17.15",
)
@pytest.mark.parametrize(("line", "change"), [*LAW_6, *LAW_7, *LAW_10, *LAW_16_17])
def test_change_fails_its_line(evidence: Evidence, line: str, change: Change) -> None:
    assert_fails(evidence, change, line)


@pytest.mark.contract("LAW-6.10")
def test_model_root_without_the_environment_report_fails(tiny: Tiny, artifact: Path) -> None:
    for change in (lambda p: p.unlink(), lambda p: p.write_text("{}")):
        copied = artifact.parent / f"copy-{id(change)}"
        shutil.copytree(artifact, copied)
        change(copied / "models" / "nvfp4" / "environment.json")
        assert "6.10" in lines_of(gather(copied, "int8"))
    assert "6.10" not in lines_of(gather(artifact, "int8"))


@pytest.mark.contract("LAW-7.2", "LAW-7.3", "LAW-7.5")
def test_hidden_storage_without_proof_is_refused_again_at_scoring(
    tiny: Tiny, tmp_path: Path
) -> None:
    from cke.fidelity.suite import pretty

    shutil.copytree(tiny.capture.folder, tmp_path / "capture")
    manifest = copy.deepcopy(tiny.capture.manifest)
    for probe in (None, {**manifest["replay_probe"], "identical": False}):
        changed = {**manifest, "replay_probe": probe}
        tmp_path.joinpath("capture/manifest.json").write_bytes(pretty(changed))
        with pytest.raises(CkeError, match=r"error\[CKE874\]"):
            Capture(tmp_path / "capture")
    assert probe_problems("logits", None, {}) == []
    assert probe_problems("other", None, {}) == ["`storage` expects hidden or logits, got `other`"]


@pytest.mark.contract("LAW-5.2")
def test_capture_without_a_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CkeError) as error:
        read_manifest(tmp_path)
    assert str(error.value).startswith(
        f"{tmp_path.name}: error[CKE873]: expected a capture with `manifest.json`, got none"
    )


@pytest.mark.contract("LAW-10.2", "LAW-10.3", "LAW-10.11", "LAW-10.12", "LAW-17.6", "LAW-17.7")
@pytest.mark.parametrize("name", KEY)
def test_every_field_of_the_key_makes_a_section_of_its_own(evidence: Evidence, name: str) -> None:
    key = key_of(evidence.report)
    assert section_of({**key, name: "other"}) != section_of(key)
    assert rank_key({**key, name: "other"}) != rank_key(key)


@pytest.mark.contract("LAW-10.3", "LAW-17.6", "LAW-17.7", "LAW-17.8")
def test_substitution_binds_the_rank_and_not_the_section(evidence: Evidence) -> None:
    entry = {"parameter": "scale", "worst_spread": 2.0}
    plain, two = evidence.report, {**evidence.report, "quantization_substitutions": [entry]}
    wide = {**two, "quantization_substitutions": [{**entry, "worst_spread": 150.0}]}
    assert section_of(key_of(plain)) == section_of(key_of(two))
    assert rank_key(key_of(plain)) != rank_key(key_of(two))
    assert rank_key(key_of(two)) == rank_key(key_of(wide))


ENTRY = {
    "parameter": "weight_global_scale",
    "kind": "one scale",
    "replacement": "the largest",
    "affected_layers": 2,
    "scored_layers": 4,
    "worst_spread": 150.0,
}


@pytest.mark.contract("LAW-17.4", "LAW-17.5", "LAW-17.9")
@pytest.mark.parametrize("name", sorted(ENTRY))
def test_entry_of_a_substitution_states_every_part(evidence: Evidence, name: str) -> None:
    whole = rendered(put("report", "quantization_substitutions", [dict(ENTRY)])(evidence))
    assert judged(whole).compliant
    entry = {key: value for key, value in ENTRY.items() if key != name}
    changed = put("report", "quantization_substitutions", [entry])(whole)
    expected = "17.5" if name == "replacement" else "17.4"
    assert expected in lines_of(changed)


@pytest.mark.contract("LAW-17.4")
@pytest.mark.parametrize(
    "change", [{"affected_layers": 5}, {"worst_spread": 0.5}, {"worst_spread": float("inf")}]
)
def test_impossible_entry_fails(evidence: Evidence, change: dict[str, float]) -> None:
    changed = put("report", "quantization_substitutions", [{**ENTRY, **change}])(evidence)
    assert "17.4" in lines_of(changed)


@pytest.mark.contract("LAW-17.6")
def test_key_that_lost_the_substitution_fails(evidence: Evidence) -> None:
    changed = put("report", "quantization_substitutions", [dict(ENTRY)])(evidence)
    changed = put("report", "comparability_key", {"substituted": []})(changed)
    assert "17.6" in lines_of(changed)


@pytest.mark.contract("LAW-17.9")
def test_page_without_the_label_of_a_substitution_fails(evidence: Evidence) -> None:
    changed = put("report", "quantization_substitutions", [dict(ENTRY)])(evidence)
    assert "17.9" in lines_of(changed)


@pytest.mark.contract("LAW-17.3", "LAW-17.13")
def test_float_model_that_nothing_inspected_is_not_applicable(evidence: Evidence) -> None:
    changed = both(put("inspection", "walked", False), put("inspection", "quantized", False))(
        evidence
    )
    found = next(f for f in judged(changed).findings if f.law == 17)
    assert found.status == "not_applicable"


@pytest.mark.contract("LAW-17.10")
@pytest.mark.parametrize(
    ("cell", "holds"),
    [
        ({"state": "measured", "mean_kld": 1.0}, True),
        ({"state": "measured"}, False),
        ({"state": "substituted", "mean_kld": 1.0, "replacement": "x"}, True),
        ({"state": "substituted", "mean_kld": 1.0}, False),
        ({"state": "unavailable", "reason": "no kernel"}, True),
        ({"state": "unavailable"}, False),
        ({"state": "unavailable", "reason": "no kernel", "mean_kld": 1.0}, False),
        ({"state": "other", "mean_kld": 1.0}, False),
    ],
)
def test_cell_holds_the_number_of_its_state(cell: dict[str, object], holds: bool) -> None:
    assert (cell_problems(cell) == []) == holds


@pytest.mark.contract("LAW-17.12")
def test_worst_spread_over_workers_is_reported() -> None:
    ranks = [[{**ENTRY, "worst_spread": spread}] for spread in (2.0, 150.0)]
    assert [item["worst_spread"] for item in worst_over_workers(ranks)] == [150.0]


@pytest.mark.contract("LAW-16.4", "LAW-16.5", "LAW-16.6")
def test_family_with_one_mean_of_two_digests_or_two_scores_of_one_is_refused(
    evidence: Evidence,
) -> None:
    first = evidence.report
    other = {**first, "student_weights_sha256": "1" * 64, "student_model": "other"}
    assert [p.line for p in family_problems((first, other))] == ["16.4"]
    nearly = {**other, "mean_kld": first["mean_kld"] * (1 + 1e-15)}
    assert nearly["mean_kld"] != first["mean_kld"]
    assert family_problems((first, nearly)) == []
    assert family_problems((first, {**first, "student_model": "again"})) == []
    conflicting = {**first, "mean_kld": 2 * first["mean_kld"]}
    assert [p.line for p in family_problems((first, conflicting))] == ["16.6"]
    assert evidence.self_report is not None
    baseline = {**evidence.self_report, "mean_kld": first["mean_kld"]}
    assert family_problems((first, baseline)) == []


@pytest.mark.contract("LAW-16.4")
def test_equal_mean_is_never_overridden(evidence: Evidence) -> None:
    other = {**evidence.report, "student_weights_sha256": "1" * 64, "student_model": "other"}
    changed = msgspec.structs.replace(evidence, family=(other,), approvals={"16": dict(APPROVAL)})
    assert 16 in judged(changed).failed_laws


@pytest.mark.contract("LAW-16.7")
def test_unbound_weights_are_no_override_for_a_new_measurement(evidence: Evidence) -> None:
    changed = put("report", "student_weights_sha256")(evidence)
    changed = msgspec.structs.replace(changed, approvals={"16": dict(APPROVAL)})
    assert 16 in judged(changed).failed_laws
    old = rendered(put("report", "laws_version", 7)(changed))
    assert 16 in judged(old).overridden_laws


def qualified(evidence: Evidence) -> Evidence:
    """The evidence as a qualification run that a receipt precedes."""
    assert evidence.suite is not None
    held = iter(evidence.suite.selected("qualification"))
    for record in evidence.report["per_context"]:
        record["context_id"] = next(held).context_id
    changes = both(
        put("report", "partition", "qualification"),
        put("report", "freeze_receipt", freeze(PARAMETERS, "2026-01-01T00:00:00+00:00")),
        swap("parameters", dict(PARAMETERS)),
    )
    return changes(evidence)


LAW_11 = [
    ("11.2", put("report", "freeze_receipt", None)),
    ("11.3", put("report", "freeze_receipt.timestamp", TIMES["int8"])),
    ("11.3", put("report", "freeze_receipt.timestamp", "2027-01-01T00:00:00+00:00")),
    ("11.3", put("report", "freeze_receipt.timestamp", "2026-01-01T00:00:00")),
    ("11.3", put("report", "freeze_receipt.timestamp", "yesterday")),
    ("11.4", put("report", "freeze_receipt.parameters_sha256", "0" * 64)),
    ("11.4", put("report", "freeze_receipt.parts.layer_assignments", False)),
    ("11.4", put("parameters", "quantization_parameters", {"group": 64})),
    ("11.4", swap("parameters", None)),
]


@pytest.mark.contract("LAW-11.2", "LAW-11.3", "LAW-11.4")
@pytest.mark.parametrize(("line", "change"), LAW_11)
def test_qualification_needs_a_receipt_of_these_parameters_before_it(
    evidence: Evidence, line: str, change: Change
) -> None:
    whole = qualified(evidence)
    assert not {found for found in lines_of(whole) if found.startswith("11.")}
    assert line in lines_of(change(whole))


@pytest.mark.contract("LAW-11.1", "LAW-11.5")
def test_partition_is_that_of_the_contexts(evidence: Evidence) -> None:
    assert "11.5" in lines_of(put("report", "partition", "qualification")(copy.deepcopy(evidence)))
    crossed = put("report", "partition", "analysis")(qualified(evidence))
    assert "11.1" in lines_of(crossed)


@pytest.mark.contract("LAW-11.6")
def test_override_of_the_freeze_is_for_exploratory_work(evidence: Evidence) -> None:
    changed = put("report", "freeze_receipt", None)(qualified(evidence))
    changed = msgspec.structs.replace(changed, approvals={"11": dict(APPROVAL)})
    assert 11 in judged(changed).failed_laws
    assert 11 in judged(put("report", "exploratory", True)(changed)).overridden_laws


PARTS = (
    "suite/manifest.json",
    "suite/tokens",
    "reference/rows",
    "reference/head.safetensors",
    "reference/manifest.json",
    "comparator.json",
)


@pytest.mark.contract("LAW-12.1", "LAW-12.5")
@pytest.mark.parametrize("part", PARTS)
def test_artifact_without_a_part_fails(artifact: Path, part: str) -> None:
    path = artifact / part
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    write_checksums(artifact)
    found = gather(artifact, "int8")
    assert "12.1" in lines_of(found)
    approved = msgspec.structs.replace(found, approvals={"12": dict(APPROVAL)})
    assert 12 in judged(approved).failed_laws


@pytest.mark.contract("LAW-12.5")
def test_restricted_reference_is_left_out_only_with_its_hashes(artifact: Path) -> None:
    from cke.fidelity.suite import pretty

    shutil.rmtree(artifact / "reference" / "rows")
    restriction = {"licence": "L", "restriction": "no redistribution", "file_hashes": {"a": "b"}}
    artifact.joinpath("restriction.json").write_bytes(pretty(restriction))
    write_checksums(artifact)
    found = msgspec.structs.replace(gather(artifact, "int8"), approvals={"12": dict(APPROVAL)})
    assert judged(rendered(found)).overridden_laws == (12,)


@pytest.mark.contract("LAW-12.2")
def test_checksums_cover_every_file_exactly(artifact: Path) -> None:
    assert checksum_problems(artifact) == []
    sums = artifact / "checksums.txt"
    text = sums.read_text()
    first = text.splitlines()[0]
    name = first[66:]
    changes = {
        f"`{name}` is listed twice": text + first + "\n",
        f"`{name}` is not listed": text.replace(first + "\n", ""),
        "is no checksum": text + "0" * 64 + "  ../outside\n",
        "`absent` is missing": text + "0" * 64 + "  absent\n",
        "has other bytes": text.replace(first[:64], "0" * 64),
    }
    for expected, changed in changes.items():
        sums.write_text(changed)
        assert any(expected in item for item in checksum_problems(artifact)), expected
    sums.write_text(text)
    artifact.joinpath("extra.txt").write_text("x")
    assert checksum_problems(artifact) == ["`extra.txt` is not listed"]
    assert "12.2" in lines_of(gather(artifact, "int8"))


@pytest.mark.contract("LAW-12.3")
@pytest.mark.parametrize(
    "name",
    [
        "token_sha256",
        "tokenizer",
        "context_length",
        "rows",
        "score_from",
        "kld_vocab_size",
        "tensor_parallel_size",
        "enforce_eager",
        "kv_cache_dtype",
        "runtime.numerics_digest",
    ],
)
def test_published_manifest_agrees_on_every_bound_field(evidence: Evidence, name: str) -> None:
    assert_fails(evidence, put("reference", name, "other"), "12.3")


@pytest.mark.contract("LAW-12.3", "LAW-5.2")
def test_report_of_another_manifest_fails(artifact: Path) -> None:
    path = artifact / "models" / "int8" / "capture-manifest.json"
    path.write_text(path.read_text().replace('"rows": 3', '"rows": 4'))
    assert "5.2" in lines_of(gather(artifact, "int8"))


@pytest.mark.contract("LAW-0.5")
def test_compliant_artifact_is_published_and_a_failing_one_is_not(
    artifact: Path, tmp_path: Path
) -> None:
    publish(artifact, tmp_path / "published", gather, lambda: TIMES["judged"])
    assert checksum_problems(tmp_path / "published") == []
    report = artifact / "models" / "int8" / "report.json"
    report.write_text(report.read_text().replace('"authoritative": true', '"authoritative": false'))
    write_checksums(artifact)
    with pytest.raises(CkeError, match=r"`int8`: law 2: .*authoritative") as error:
        publish(artifact, tmp_path / "again", gather, lambda: TIMES["judged"])
    assert error.value.exit_code == 4
    assert "CKE876" in str(error.value)
    assert not tmp_path.joinpath("again").exists()
