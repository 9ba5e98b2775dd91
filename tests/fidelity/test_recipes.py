"""The recipes and campaigns of examples/: every command in them is one that `cke` takes."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cke.cli.fidelity import app
from cke.fidelity.plan import read_plan
from cke.fidelity.score import Shard

EXAMPLES = Path(__file__).parents[2] / "examples"
RECIPES = ("ci_matrix.yml", "slurm.sh")


def commands(text: str) -> list[list[str]]:
    """The `cke fidelity` commands of a text, variables with values in their place."""
    joined = text.replace("\\\n", " ")
    joined = re.sub(r"\$\{\{ matrix\.index \}\}|\$SLURM_ARRAY_TASK_ID", "3", joined)
    joined = re.sub(r"\$\{?(\w+)\}?", r"\1", joined)
    found = re.findall(r"^\s*(?:- run: )?(cke fidelity .+)$", joined, re.MULTILINE)
    return [shlex.split(line)[2:] for line in found]


def shards_of(words: list[str]) -> list[Shard]:
    """The shards that a command names; the command is one that `cke fidelity` takes."""
    app.parse_args(words, exit_on_error=False, print_error=False)
    return [Shard.parse(words[i + 1]) for i, word in enumerate(words) if word == "--shard"]


@pytest.mark.parametrize("name", RECIPES)
def test_commands_of_a_recipe_are_taken(name: str) -> None:
    text = EXAMPLES.joinpath("recipes", name).read_text("utf-8")
    score, merge = sorted(commands(text), key=lambda words: words[0] != "score")
    assert (score[0], merge[0]) == ("score", "merge")
    assert shards_of(score) == [Shard(3, 8)]
    assert shards_of(merge) == []
    folders = [word for word in merge if "shard-" in word]
    assert [folder[-1] for folder in folders] == list("01234567")
    assert score[score.index("--out") + 1].endswith("shard-3")


def test_command_that_is_none_is_not_taken() -> None:
    with pytest.raises(Exception, match="--sharding"):
        shards_of(["score", "m", "--capture", "c", "--suite", "s", "--out", "o", "--sharding", "1"])


def test_slurm_recipe_is_a_shell_script() -> None:
    script = EXAMPLES / "recipes" / "slurm.sh"
    assert subprocess.run(["sh", "-n", str(script)], check=False).returncode == 0


@pytest.mark.parametrize("backend", ["here", "dask", "ray"])
def test_sharded_run_prints_commands_that_cover_every_row_once(backend: str) -> None:
    script = EXAMPLES / "recipes" / "shards.py"
    given = ["model", "artifact", "out", "--count", "3", "--on", backend, "--dry-run"]
    done = subprocess.run(
        [sys.executable, str(script), *given], capture_output=True, text=True, check=True
    )
    lines = [shlex.split(line)[2:] for line in done.stdout.splitlines()]
    shards = [shard for words in lines[:-1] for shard in shards_of(words)]
    assert sorted(row for shard in shards for row in shard.rows(10)) == list(range(10))
    assert lines[-1][:4] == ["merge", "out/shard-0", "out/shard-1", "out/shard-2"]
    assert shards_of(lines[-1]) == []


@pytest.mark.parametrize("path", sorted(EXAMPLES.joinpath("campaigns").glob("*.toml")), ids=str)
def test_campaign_of_the_examples_is_a_plan(path: Path) -> None:
    plan = read_plan(path)
    assert len(plan.candidates) >= 4
    assert plan.reference == "${MODEL}"
