"""Join, do not instrument: without X-Ray, building, running and tracing give the same bytes."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.models import TinyModel

BELOW = ("dsl", "codegen", "kernel_registry", "runtime", "oracles", "generated", "src/cke/schemas")
SCRIPT = """
import sys
blocked = {blocked!r}
class Gone:
    def find_spec(self, name, path=None, target=None):
        if blocked and (name == "cke.xray" or name.startswith("cke.xray.")):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Gone())
from cke.cli import main
model, out = {model!r}, {out!r}
assert main(["build", "llama", "--model", model, "-o", out + "/package"]) == 0
assert main(["trace", "--model", model, "--out", out + "/trace", "--tokens", "3 5 7",
             "--steps", "4"]) == 0
import cke.api
print(cke.api.load(model).generate([[3, 5, 7]], max_new_tokens=4))
assert not blocked or "cke.xray" not in sys.modules
"""


@pytest.mark.contract("XRAY-57")
def test_nothing_below_xray_imports_it(repository: Path) -> None:
    for part in BELOW:
        for path in repository.joinpath(part).rglob("*.py"):
            tree = ast.parse(path.read_text("utf-8"))
            names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
            names |= {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
            assert not [name for name in names if name.startswith("cke.xray")], path


@pytest.mark.contract("XRAY-57")
def test_generated_code_holds_no_call_of_a_diagnosis(repository: Path) -> None:
    for path in repository.joinpath("generated").rglob("*.py"):
        assert "xray" not in path.read_text("utf-8").lower(), path


@pytest.mark.contract("XRAY-57")
@pytest.mark.multiprocess
@pytest.mark.slow
def test_build_run_and_trace_are_equal_without_xray(
    tiny_model: TinyModel, tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(repository / "src"))
    model = str(tiny_model("llama"))
    said = [_ran(model, tmp_path / name, name == "without") for name in ("with", "without")]
    assert said[0] == said[1]
    files = sorted(
        path.relative_to(tmp_path / "with")
        for path in (tmp_path / "with").rglob("*")
        if path.is_file()
    )
    assert len(files) >= 6
    for file in files:
        one, two = (tmp_path.joinpath(name, file).read_bytes() for name in ("with", "without"))
        if file.name == "trace.json":
            one, two = (_stable(data) for data in (one, two))
        assert one == two, file


def _stable(trace: bytes) -> bytes:
    """What a trace states: its volatile part differs between two equal runs."""
    return str(json.loads(trace)["body_sha256"]).encode()


def _ran(model: str, out: Path, blocked: bool) -> str:
    out.mkdir()
    script = SCRIPT.format(blocked=blocked, model=model, out=str(out))
    words = [sys.executable, "-c", script]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.replace(str(out), "OUT")
