"""Writers: whole files or none, and identity that must be there."""

import contextlib
import os
import re
import subprocess
import sys

import msgspec
import pytest

from cke.artifacts.engine import Execution
from cke.artifacts.execute import execute
from cke.artifacts.fingerprints import Hasher
from cke.artifacts.refusal import ArtifactError
from cke.artifacts.seeded import SeededEngine
from cke.artifacts.writing import encode, new_artifact_set_id, write_artifact
from cke.cli.run_artifacts import ArtifactOptions, write_artifacts
from tests.artifacts.documents import PLAIN, run

EMPTY = Hasher().fingerprint()


@pytest.mark.contract("LIS-55", "LIS-4", "LIS-5", "LIS-6", "LIS-7", "LIS-9")
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"binary": EMPTY}, "the binary identity could not be captured"),
        ({"model": EMPTY}, "the model identity could not be captured"),
        ({"config": EMPTY}, "the config identity could not be captured"),
        ({"backend": ""}, "the backend name could not be captured"),
        ({"family": ""}, "the family name could not be captured"),
        ({"input_mode": "vocab_prompt"}, "the tokenizer identity could not be captured"),
        (
            {"input_mode": "vocab_prompt", "tokenizer": EMPTY},
            "the tokenizer identity could not be captured",
        ),
    ],
)
def test_identity_that_is_missing_gives_no_report(change, text):
    engine = SeededEngine()
    engine.facts = msgspec.structs.replace(engine.facts, **change)
    with pytest.raises(ArtifactError) as caught:
        execute(engine, PLAIN)
    assert str(caught.value) == f"lis: artifact error: {text}"
    assert caught.value.diagnostics[0].code == "CKE861"
    assert caught.value.exit_code == 1


@pytest.mark.contract("LIS-56")
def test_failure_that_the_system_does_not_name_is_said_as_it_is(tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError("out of order")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ArtifactError, match="cannot be written: out of order"):
        write_artifact(run(PLAIN).report, tmp_path / "r.json")


@pytest.mark.contract("LIS-123")
@pytest.mark.parametrize("kind", ["report", "trace", "layers"])
def test_artifact_that_a_reader_would_refuse_is_not_encoded(kind):
    artifact = getattr(run(), kind)
    with pytest.raises(ArtifactError, match=r"is not whole: \$\.schema: expected `lis"):
        encode(msgspec.structs.replace(artifact, schema="lis.other/v1"))


@pytest.mark.contract("LIS-56", "LIS-81", "LIS-103")
@pytest.mark.parametrize("name", ["report", "trace"])
@pytest.mark.parametrize(
    ("target", "text"),
    [("", "it is a folder"), ("none/a.json", "its folder is not there")],
)
def test_target_that_cannot_be_a_file_is_refused(name, target, text, tmp_path):
    with pytest.raises(ArtifactError, match=text):
        write_artifact(getattr(run(PLAIN), name), tmp_path / target)


@pytest.mark.contract("LIS-56")
def test_pipe_in_a_folder_that_cannot_be_written_takes_an_artifact(tmp_path, monkeypatch):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    monkeypatch.setattr(os, "access", lambda asked, mode: asked == path)
    try:
        write_artifact(run(PLAIN).report, path)
        assert os.read(reader, 1 << 16) == encode(run(PLAIN).report)
    finally:
        os.close(reader)
    assert path.is_fifo()


@pytest.mark.contract("LIS-82", "LIS-56", "LIS-103")
@pytest.mark.parametrize("call", ["fdopen", "fsync", "replace"])
@pytest.mark.parametrize("kind", ["report", "trace", "layers"])
def test_failure_while_writing_is_reported_and_the_old_file_stays(
    kind, call, tmp_path, monkeypatch
):
    def fail(*arguments):
        raise OSError(28, "No space left on device")

    target = tmp_path / "report.json"
    target.write_text("old")
    artifact = getattr(run(), kind)
    monkeypatch.setattr(os, call, closing_badly(os.fdopen) if call == "fdopen" else fail)
    with pytest.raises(ArtifactError) as caught:
        write_artifact(artifact, target)
    assert str(caught.value) == (
        "lis: artifact error: `report.json` cannot be written: No space left on device"
    )
    assert caught.value.exit_code == 1
    assert target.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["report.json"]


def closing_badly(fdopen):
    """`os.fdopen` whose files cannot be closed: what was written last is lost."""

    def opened(handle, mode):
        file = fdopen(handle, mode)

        @contextlib.contextmanager
        def closed():
            yield file
            file.close()
            raise OSError(28, "No space left on device")

        return closed()

    return opened


KILLED = """
import os, sys
from pathlib import Path
from cke.artifacts.writing import write_artifact
from tests.artifacts.documents import PLAIN, run
os.replace = lambda *_: os._exit(9)
write_artifact(run(PLAIN).report, Path(sys.argv[1]))
"""


@pytest.mark.contract("LIS-56")
def test_run_that_is_killed_before_the_rename_leaves_the_old_file(tmp_path, repository):
    target = tmp_path / "report.json"
    target.write_text("old")
    environment = {**os.environ, "PYTHONPATH": f"{repository}{os.pathsep}{repository / 'src'}"}
    command = [sys.executable, "-c", KILLED, str(target)]
    assert subprocess.run(command, env=environment, check=False).returncode == 9
    assert target.read_text() == "old"


@pytest.mark.contract("LIS-88")
def test_set_id_comes_from_the_system_and_its_failure_ends_the_run(monkeypatch):
    assert new_artifact_set_id() != new_artifact_set_id()

    def fail(size):
        raise NotImplementedError("no entropy")

    monkeypatch.setattr("secrets.token_bytes", fail)
    with pytest.raises(ArtifactError, match="no randomness for artifact_set_id"):
        execute(SeededEngine(), PLAIN)


@pytest.mark.contract("LIS-54", "LIS-55")
def test_companion_of_a_report_that_is_not_whole_is_not_written(tmp_path):
    report = run(PLAIN).report
    model = msgspec.structs.replace(report.manifest.model, family="**bold** [x](y)")
    broken = msgspec.structs.replace(
        report, manifest=msgspec.structs.replace(report.manifest, model=model)
    )
    with pytest.raises(ArtifactError, match="the run_report is not whole"):
        write_artifacts(
            ArtifactOptions(report_md=tmp_path / "r.md"), Execution(broken, run().trace)
        )
    assert list(tmp_path.iterdir()) == []


def test_scores_are_written_as_nine_digits_and_summaries_as_six():
    text = encode(run().layers).decode()
    digits = [
        len(found.replace(".", "").lstrip("0"))
        for found in re.findall(r'"(?:min|max|mean|l2)": -?([0-9.]+)', text)
    ]
    assert max(digits) == 6
