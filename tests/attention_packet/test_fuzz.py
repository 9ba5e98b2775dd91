"""Whatever bytes the documents hold, the reader answers with one of its three outcomes."""

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cke.attention_packet.analyze import Outcome, analyze
from tests.attention_packet.fuzz_reader import EDGES, EXAMPLE, check_outcome, places, replace

KEEP = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
) | st.sampled_from(EDGES)


def outcome_of(folder: Path, **documents: Any) -> Outcome:
    builder = copy.deepcopy(EXAMPLE)
    for name, change in documents.items():
        setattr(builder, name, change)
    found = analyze(builder.write_documents(folder))
    check_outcome(found)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fuzz")
    copy.deepcopy(EXAMPLE).write(path)
    return path


@KEEP
@given(raw=st.binary(max_size=200) | st.text(max_size=60).map(str.encode))
@pytest.mark.parametrize("document", ["raw_packet", "raw_snapshot"])
def test_arbitrary_bytes_are_refused(document: str, raw: bytes, folder: Path) -> None:
    assert outcome_of(folder, **{document: lambda _: raw}).analysis.status == "refused"


@KEEP
@given(data=st.data())
@pytest.mark.parametrize("document", ["raw_packet", "raw_snapshot"])
def test_changed_bytes_are_an_outcome(document: str, data: st.DataObject, folder: Path) -> None:
    def change(raw: bytes) -> bytes:
        start = data.draw(st.integers(0, len(raw)))
        end = data.draw(st.integers(start, min(start + 12, len(raw))))
        return raw[:start] + data.draw(st.binary(max_size=8)) + raw[end:]

    outcome_of(folder, **{document: change})


@KEEP
@given(data=st.data())
@pytest.mark.parametrize("document", ["raw_packet", "raw_snapshot"])
def test_changed_values_are_an_outcome(document: str, data: st.DataObject, folder: Path) -> None:
    def change(raw: bytes) -> bytes:
        value = json.loads(raw)
        for _ in range(data.draw(st.integers(1, 3))):
            replace(value, data.draw(st.sampled_from(places(value))), data.draw(VALUES))
        return json.dumps(value).encode("utf-8", "surrogatepass")

    outcome_of(folder, **{document: change})


@pytest.mark.nightly
@pytest.mark.parametrize("target", ["bytes", "values"])
def test_coverage_guided_run_finds_no_crash(target: str, tmp_path: Path) -> None:
    pytest.importorskip("atheris")
    command = [sys.executable, "-m", "tests.attention_packet.fuzz", target, str(tmp_path)]
    command += ["-runs=20000", "-max_total_time=240", "-rss_limit_mb=2048", "-timeout=20"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
