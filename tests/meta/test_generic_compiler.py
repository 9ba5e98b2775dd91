"""The compiler knows no model: no family, weights file or class name stands in its code."""

import re
from pathlib import Path

import pytest

GENERIC = ("dsl", "codegen", "kernel_registry/resolve", "kernel_registry/operators")


def model_names(repository: Path) -> set[str]:
    """Circuit names, and the HF class and GGUF architecture names that circuits match."""
    names: set[str] = set()
    for path in repository.joinpath("circuits").glob("*.circuit"):
        names.add(path.stem)
        text = path.read_text(encoding="utf-8")
        match = re.search(r"^match:\n((?:[ ]+.*\n|\n)+)", text, re.MULTILINE)
        rows = match.group(1).splitlines() if match else []
        for row in rows:
            names |= set(re.findall(r"\b[A-Z]\w+(?:LM|Model|Generation|LMHeadModel)\b", row))
            names |= set(re.findall(r"^\s+gguf ([\w-]+)", row))
    return names


def occurrences(text: str, names: set[str]) -> set[str]:
    """The names that stand in a text as whole words, apart from those of rope scalings."""
    words = set(re.findall(r"[A-Za-z][A-Za-z0-9_]*", text))
    lowered = {word.lower() for word in words}
    return {name for name in names if name in words or name.lower() in lowered}


def generic_files(repository: Path) -> list[Path]:
    """The sources of the parts that serve every model."""
    files = [path for part in GENERIC for path in repository.joinpath(part).rglob("*.py")]
    files += repository.joinpath("kernel_registry").glob("resolve*.py")
    files += repository.joinpath("codegen").rglob("*.j2")
    files += repository.joinpath("dsl").glob("*.lark")
    return sorted(set(files))


@pytest.mark.contract("XRAY-5", "XRAY-60")
def test_no_model_name_stands_in_the_compiler(repository: Path) -> None:
    names = model_names(repository)
    assert len(names) > 30
    found = {
        str(path.relative_to(repository)): hits
        for path in generic_files(repository)
        if (hits := occurrences(path.read_text(encoding="utf-8"), names))
    }
    assert found == {}


def test_search_finds_a_planted_name(repository: Path) -> None:
    names = model_names(repository)
    assert occurrences('if family == "qwen3":', names) == {"qwen3"}
    assert occurrences("if cls is LlamaForCausalLM:", names) == {"LlamaForCausalLM"}
    assert occurrences("scaling llama3 of rope", names) == set()
