"""The pages of X-Ray's names and reports say what is there, and what is not."""

import importlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from cke.api.companions import FILES
from cke.cli import build_app
from cke.schemas.diagnosis import Companion
from cke.schemas.published import FORMATS, json_schema
from cke.xray.classes import CLASSES
from tests.xray import reports

ROW = re.compile(r"^\| (?P<name>[^|]+) \| `(?P<ours>[^`]+)` \| (?P<note>[^|]*)\|$", re.MULTILINE)
PROPOSED = re.compile(r"^\| `(\w+)` \| (?:w|o|h)", re.MULTILINE)


def _rows(repository: Path) -> list[tuple[str, str]]:
    text = repository.joinpath("docs/reference/xray-names.md").read_text("utf-8")
    found = [(match["name"].strip(), match["ours"]) for match in ROW.finditer(text)]
    body = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    heads = sum(line == "| name | ours | note |" for line in body)
    assert len(found) == len(body) - heads
    return found


def _flags() -> dict[str, set[str]]:
    app = build_app()
    found: dict[str, set[str]] = {}
    for name in ("xray", "validate", "verify"):
        command = app[name]
        words = command.default_command and command.assemble_argument_collection()
        found[name] = {flag for item in words or () for flag in item.names}
        found |= {f"{name} {sub}": set() for sub in command if not sub.startswith("-")}
    return found


def _resolves(ours: str, repository: Path) -> bool:
    kind, _, rest = ours.partition(" ")
    if kind == "make":
        return f"\n{rest}:" in repository.joinpath("Makefile").read_text("utf-8")
    if kind == "class":
        return rest in CLASSES
    if kind == "schema":
        return rest in FORMATS
    if kind == "cke":
        command, _, flag = rest.partition(" --")
        return command in _flags() and (not flag or f"--{flag}" in _flags()[command])
    if ":" in ours:
        module, _, path = ours.partition(":")
        name, _, field = path.partition(".")
        found = getattr(importlib.import_module(module), name, None)
        return found is not None and (not field or field in found.__struct_fields__)
    return repository.joinpath(ours).exists()


@pytest.mark.contract("XRAY-64")
def test_every_name_of_the_specification_is_resolved(repository: Path) -> None:
    rows = _rows(repository)
    assert len(rows) > 90
    assert [name for name, ours in rows if not _resolves(ours, repository)] == []
    assert len({name for name, _ in rows}) == len(rows)


@pytest.mark.contract("XRAY-64")
@pytest.mark.parametrize(
    "ours",
    [
        "make no-such-target",
        "class NO_SUCH_CLASS",
        "schema cke.none",
        "cke xray --none",
        "cke none",
        "cke.schemas.trace:Record.none",
        "no/such/path",
    ],
)
def test_a_name_that_is_not_there_is_not_resolved(ours: str, repository: Path) -> None:
    assert not _resolves(ours, repository)


@pytest.mark.contract("XRAY-25")
@pytest.mark.contract("XRAY-50")
def test_the_page_of_reports_lists_every_schema_and_file(repository: Path) -> None:
    text = repository.joinpath("docs/reference/xray-reports.md").read_text("utf-8")
    listed = set(re.findall(r"^\| `(cke\.[\w.-]+)` \|", text, re.MULTILINE))
    ours = {name for name in FORMATS if "xray" in name or "manifest" in name}
    assert listed == ours - {"cke.xray_probe_packet"}
    for schema, file in FILES.items():
        assert f"| `{schema}` | `{file}` |" in text


@pytest.mark.contract("XRAY-49")
def test_known_gaps_say_what_is_not_drawn_and_why(repository: Path) -> None:
    text = repository.joinpath("docs/reference/xray-reports.md").read_text("utf-8")
    gaps = text.partition("## Known gaps")[2].partition("\n## ")[0]
    assert "not drawn over the drift curve: positions of tokens are not stops" in gaps
    assert "`first_material`" in gaps
    assert gaps.count("\n- ") >= 3


@pytest.mark.contract("XRAY-63")
def test_proposed_names_are_in_no_schema(repository: Path) -> None:
    text = repository.joinpath("docs/reference/xray-reports.md").read_text("utf-8")
    names = set(PROPOSED.findall(text.partition("## Proposed, not implemented")[2]))
    assert len(names) == 11
    for name in FORMATS:
        assert not names & set(re.findall(r'"(\w+)": \{', json.dumps(json_schema(name))))
    plain = msgspec.to_builtins(reports.clean())
    for name in names:
        with pytest.raises(msgspec.ValidationError, match=f"unknown field `{name}`"):
            msgspec.convert({**plain, name: 1}, type(reports.clean()))


@pytest.mark.contract("XRAY-34")
def test_make_targets_have_their_given_names_and_parts(repository: Path) -> None:
    text = repository.joinpath("Makefile").read_text("utf-8")
    target = {
        name: body for name, body in re.findall(r"^([\w-]+):(.*(?:\n\t.*)*)", text, re.MULTILINE)
    }
    assert "test-bf16-xray" in target["test-bf16"].partition("\n")[0]
    gate = target["test-bf16-xray"]
    assert all(f"tests/{part}" in gate for part in ("xray", "validator", "schemas"))
    assert "not real_model" in gate
    assert "cke validate --light" in target["test-xray-validator-selftest"]
    vision = target["xray-vision-parity"]
    assert 'xray --model "$(CHECKPOINT)" --oracle $(BACKEND) --out "$(XRAY_OUTPUT_DIR)"' in vision


@pytest.mark.contract("XRAY-34")
@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("BACKEND=llamacpp", "GGUF=none.gguf"), "no vision circuit for BACKEND=llamacpp"),
        (("BACKEND=pytorch",), "needs CHECKPOINT=, a model folder"),
        (("BACKEND=pytorch", "CHECKPOINT=none"), "there is no model at none"),
    ],
)
def test_the_vision_target_says_what_is_missing(
    given: tuple[str, ...], said: str, repository: Path
) -> None:
    make = shutil.which("make")
    assert make is not None, "make is part of what a contributor has"
    words = [make, "xray-vision-parity", *given]
    ran = subprocess.run(words, cwd=repository, capture_output=True, text=True, check=False)
    assert said in ran.stdout
    assert "Error 3" in ran.stderr


def test_a_companion_names_a_relative_file() -> None:
    assert Companion.__struct_fields__ == ("schema", "file", "body_sha256")
