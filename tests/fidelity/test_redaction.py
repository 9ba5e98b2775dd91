"""Credentials: redacted at capture, redacted when rendered, refused at publication."""

from pathlib import Path

import msgspec
import pytest

from cke.errors import CkeError
from cke.fidelity.artifact import publish, write_checksums
from cke.fidelity.checks.evidence import Evidence
from cke.fidelity.environment import environment_report
from cke.fidelity.gather import gather
from cke.fidelity.page import blocks_of, html_page, markdown
from cke.fidelity.redact import REDACTED, credentials, is_secret_name, watched
from tests.fidelity.conftest import TIMES, judged

SECRET = "hf_" + "a1B2" * 9
SHAPES = (
    SECRET,
    "ghp_" + "x" * 36,
    "sk-" + "y" * 40,
    "AKIA" + "Z" * 16,
    "xoxb-" + "1" * 12,
    "-----BEGIN RSA PRIVATE" + " KEY-----",
)


@pytest.mark.contract("LAW-6.4")
@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True),
        ("API_KEY", True),
        ("MY_SESSION_ID", True),
        ("HF_HOME", False),
        ("TOKENIZERS_PARALLELISM", False),
        ("MONKEY", False),
    ],
)
def test_name_with_a_whole_word_of_a_credential_is_secret(name: str, secret: bool) -> None:
    assert is_secret_name(name) == secret


@pytest.mark.contract("LAW-6.5", "LAW-6.13")
def test_watched_variables_say_that_a_credential_was_set() -> None:
    variables = {"HF_TOKEN": "v", "HF_HOME": "/cache", "PATH": "/bin", "API_KEY": "k"}
    assert watched(variables) == {"API_KEY": REDACTED, "HF_HOME": "/cache", "HF_TOKEN": REDACTED}


@pytest.mark.contract("LAW-6.6")
def test_credential_is_redacted_at_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("HF_ENDPOINT", f"https://user:{SECRET}@example.org")
    report = environment_report({}, TIMES["judged"])
    assert report["variables"]["HF_TOKEN"] == REDACTED
    assert SECRET not in msgspec.json.encode(report).decode()


@pytest.mark.contract("LAW-6.6")
def test_credential_is_redacted_when_rendered(evidence: Evidence) -> None:
    report = {**evidence.report, "student_model": f"model {SECRET}"}
    changed = msgspec.structs.replace(evidence, report=report)
    blocks = blocks_of(changed, judged(changed))
    for text in (markdown(blocks), html_page(blocks)):
        assert SECRET not in text
        assert "redacted" in text


@pytest.mark.contract("LAW-6.7")
@pytest.mark.parametrize("shape", SHAPES)
def test_shape_of_a_credential_is_found(shape: str) -> None:
    assert credentials(f"some text {shape} more")


@pytest.mark.contract("LAW-6.7")
@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('{"token": "abc"}', 1),
        ('{"api_key": "abc"}', 1),
        ("password: hunter2", 1),
        ('{"token_sha256": "abc"}', 0),
        ('{"eos_token": "</s>"}', 0),
        ('{"token": ""}', 0),
        (f'{{"password": "{REDACTED}"}}', 0),
    ],
)
def test_field_that_is_exactly_a_credential_is_found(text: str, count: int) -> None:
    assert len(credentials(text)) == count


@pytest.mark.contract("LAW-6.6", "LAW-6.7", "LAW-6.8")
@pytest.mark.parametrize("name", ["notes.txt", "models/int8/report.json", "deep/er/config.yaml"])
def test_planted_credential_is_refused_at_publication(
    artifact: Path, tmp_path: Path, name: str
) -> None:
    path = artifact / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text((path.read_text() if path.is_file() else "") + f"\n{SECRET}\n")
    approval = {"approver": "A", "justification": "b", "timestamp": TIMES["baseline"]}
    artifact.joinpath("approvals.json").write_text(msgspec.json.encode({"6": approval}).decode())
    write_checksums(artifact)
    with pytest.raises(CkeError) as error:
        publish(artifact, tmp_path / "published", gather, lambda: TIMES["judged"])
    assert f"error[CKE877]: {name}: the shape of a credential, `hf_a…`" in str(error.value)
    assert SECRET not in str(error.value)
    assert not tmp_path.joinpath("published").exists()
