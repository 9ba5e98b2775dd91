"""The Markdown companion: sections, order, previews."""

import re

import msgspec
import pytest

from cke.artifacts.execute import execute
from cke.artifacts.markdown import plain, preview, render_markdown
from cke.artifacts.seeded import SeededEngine
from cke.cli.run_artifacts import ArtifactOptions, write_artifacts
from cke.schemas.execution_manifest import Fingerprint
from tests.artifacts.documents import PLAIN, run

SECTIONS = [
    "Outcome", "Identity", "Retention Policy", "Runtime", "KV Cache", "Token Accounting",
    "Performance Summary", "Fingerprints", "Notes",
]  # fmt: skip

EXAMPLE = """\
# LIS Execution Report

> This Markdown report is a human-readable companion. The JSON artifact remains the canonical machine-readable source of truth.

## Outcome

- Status: OK
- Stop reason: decode_limit

## Identity

- Schema: `lis.execution_artifact/v1`
- Kind: `run_report`
- Model format: safetensors
- Model family: llama3_decoder
- Backend: avx2

## Runtime

- Configured context: 512
- Batch size: 1
- Generation limit: 16
- Thread count: 4
- Diagnostics: disabled
- Perf: enabled

## Token Accounting

- Prompt sequences: 1
  - seq 1: 18 token(s), digest `fnv1a64:a1b2c3d4e5f60718`
- Selected tokens: 16
  - digest: `fnv1a64:1234567890abcdef`
  - IDs: `0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15`
- Emitted tokens: 16
  - digest: `fnv1a64:fedcba0987654321`
  - IDs: `0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15`

## Fingerprints

- Binary: `fnv1a64:abc123def4567890` (123456 bytes)
- Model: `fnv1a64:1112223334445556` (9876543 bytes)
- Config: `fnv1a64:9998887776665554` (1024 bytes)
- Input: `fnv1a64:aaaabbbbccccdddd` (32 bytes)
- Runtime: `fnv1a64:1a2b3c4d5e6f7a8b`
- Backend: `fnv1a64:0f1e2d3c4b5a6978`
"""  # noqa: E501


def sections(text):
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return parts[0].strip(), {
        name: body.strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def mark(hex_, size=0):
    return Fingerprint(hex=hex_, size_bytes=size)


def example():
    """A report with the values of the published example."""
    report = run(msgspec.structs.replace(PLAIN, perf=True)).report
    manifest, replace = report.manifest, msgspec.structs.replace
    prompt = replace(
        report.report.prompt_sequences[0],
        token_count=18,
        token_id_digest=mark("a1b2c3d4e5f60718"),
    )
    ids = tuple(range(16))
    return replace(
        report,
        manifest=replace(
            manifest,
            binary=replace(manifest.binary, fingerprint=mark("abc123def4567890", 123456)),
            model=replace(
                manifest.model, format="safetensors", fingerprint=mark("1112223334445556", 9876543)
            ),
            config=replace(manifest.config, fingerprint=mark("9998887776665554", 1024)),
            input=replace(manifest.input, fingerprint=mark("aaaabbbbccccdddd", 32)),
            runtime=replace(
                manifest.runtime,
                configured_context=512,
                generation_limit=16,
                thread_count=4,
                fingerprint=mark("1a2b3c4d5e6f7a8b"),
            ),
            backend=replace(manifest.backend, name="avx2", fingerprint=mark("0f1e2d3c4b5a6978")),
        ),
        report=replace(
            report.report,
            prompt_sequences=(prompt,),
            selected_token_count=16,
            selected_token_ids=ids,
            selected_token_digest=mark("1234567890abcdef"),
            emitted_token_count=16,
            emitted_token_ids=ids,
            emitted_token_digest=mark("fedcba0987654321"),
        ),
    )


@pytest.mark.contract("LIS-155", "LIS-41", "LIS-42", "LIS-43", "LIS-44", "LIS-46", "LIS-48")
@pytest.mark.contract("LIS-51")
def test_published_example_renders_line_for_line():
    head, expected = sections(EXAMPLE)
    found_head, found = sections(render_markdown(example()))
    assert found_head == head
    assert {name: found[name] for name in expected} == expected


@pytest.mark.contract("LIS-53", "LIS-50", "LIS-45", "LIS-47", "LIS-52")
def test_sections_follow_the_priority_of_a_reviewer():
    with_perf = run(msgspec.structs.replace(PLAIN, perf=True)).report
    found = sections(render_markdown(with_perf))[1]
    assert list(found) == SECTIONS
    without = sections(render_markdown(run(PLAIN).report))[1]
    assert list(without) == [name for name in SECTIONS if name != "Performance Summary"]
    assert found["Retention Policy"].splitlines() == [
        "- Absolute paths: omitted",
        "- Raw prompt text: omitted",
        "- Generated text: omitted",
    ]
    for word in ("TTFT", "Mean ITL", "Steady-state TPS", "End-to-end TPS", "| prefill |"):
        assert word in found["Performance Summary"]
    for word in ("run_local", "f32", "Max tokens: 11", "Used tokens: 10", "6 layer(s)"):
        assert word in found["KV Cache"]
    perf = with_perf.report.perf
    assert found["Performance Summary"].splitlines()[:4] == [
        f"- TTFT: {perf.ttft_ms:.3f} ms",
        f"- Mean ITL: {perf.itl_ms:.3f} ms",
        f"- Steady-state TPS: {perf.tps_steady:.3f}",
        f"- End-to-end TPS: {perf.tps_end_to_end:.3f}",
    ]
    assert found["Notes"].splitlines() == [
        "- The JSON artifact is canonical.",
        "- Token IDs and digests are retained.",
        "- Raw text and absolute paths are omitted by default.",
    ]


@pytest.mark.contract("LIS-26", "LIS-47", "LIS-50")
def test_what_a_report_lacks_has_no_section_and_no_number():
    report = run(msgspec.structs.replace(PLAIN, generate=1, perf=True)).report
    bare = msgspec.structs.replace(report.report, kv_cache=msgspec.UNSET)
    found = sections(render_markdown(msgspec.structs.replace(report, report=bare)))[1]
    assert list(found) == [name for name in SECTIONS if name != "KV Cache"]
    assert "- Mean ITL: n/a ms\n- Steady-state TPS: n/a\n" in found["Performance Summary"]


@pytest.mark.contract("LIS-47", "LIS-28")
def test_policy_of_the_cache_is_said_flag_by_flag():
    assert (
        "- Policy: eviction-free yes, monotonic growth yes, paging no, offload no, "
        "sliding window no, prefix reuse no\n"
    ) in render_markdown(run(PLAIN).report)


@pytest.mark.contract("LIS-43")
def test_failed_run_says_error():
    report = run(PLAIN).report
    failed = msgspec.structs.replace(
        report,
        report=msgspec.structs.replace(
            report.report, execution_status="error", stop_reason="runtime_error"
        ),
    )
    assert "- Status: error\n- Stop reason: runtime_error" in render_markdown(failed)


@pytest.mark.contract("LIS-48")
def test_every_sequence_of_a_batch_has_its_line():
    report = execute(SeededEngine(), msgspec.structs.replace(PLAIN, batch=2)).report
    text = render_markdown(report)
    assert "- Prompt sequences: 2\n  - seq 1: 3 token(s)" in text
    assert "\n  - seq 2: 3 token(s)" in text


@pytest.mark.contract("LIS-49")
@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "(none)"), (1, "`0`"), (16, ", 15`"), (17, ", 15` (1 more)"), (1000, ", 15` (984 more)")],
)
def test_preview_is_bounded(count, text):
    found = preview(range(count))
    assert found.endswith(text)
    assert found.count(",") == max(min(count, 16) - 1, 0)


@pytest.mark.contract("LIS-54")
def test_names_carry_no_markup():
    assert plain("llama3_decoder") == "llama3_decoder"
    assert plain("a`b\n# c [x](y)") == "a?b???c??x??y?"


@pytest.mark.contract("LIS-40")
def test_companion_is_written_without_the_json(tmp_path):
    write_artifacts(ArtifactOptions(report_md=tmp_path / "r.md"), run(PLAIN))
    assert (tmp_path / "r.md").read_text().startswith("# LIS Execution Report\n")
    assert [item.name for item in tmp_path.iterdir()] == ["r.md"]
