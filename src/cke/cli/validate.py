"""`cke validate`: X-Ray itself under test, and its score."""

import sys
from pathlib import Path

from cke.cli.output import Format, choose, deliver, encode_json


def validate(
    *,
    out: Path = Path("validate"),
    light: bool = False,
    nightly: bool = False,
    only: tuple[str, ...] = (),
    jobs: int = 1,
    list: bool = False,
    sabotage: str | None = None,
    format: Format = "human",
) -> int:
    """Inject known faults into running circuits, let X-Ray diagnose them blind, print the score.

    Parameters
    ----------
    out: the folder for the scoreboard; a run that was stopped is taken up from there.
    light: a few faults of every kind, the default.
    nightly: the whole catalogue, in combinations chosen pairwise from a committed seed.
    only: patterns of ids of entries or cases, such as `rope-*`.
    jobs: processes that diagnose at the same time.
    list: print the chosen cases and run none.
    sabotage: break one part of X-Ray first, such as `comparator`: the score must turn red.
    """
    from cke.schemas.validator_selftest import Document, Selftest
    from cke.validator.render import junit, markdown
    from cke.validator.scoreboard import is_right
    from cke.validator.validate import chosen_cases
    from cke.validator.validate import validate as run

    mode = "nightly" if nightly and not light else "light"
    if list:
        for case in chosen_cases(mode, only, sabotage):
            print(case.id)
        return 0
    document: Document
    body: Selftest
    renderers = {
        "human": lambda: f"{_line(body)}\n" + "".join(f"  {r}\n" for r in body.reasons),
        "json": lambda: encode_json(document),
        "markdown": lambda: markdown(body),
        "junit": lambda: junit(body, {}),
    }
    choose(format, renderers)
    cases = chosen_cases(mode, only, sabotage)
    _say(f"{len(cases)} cases, {mode}, chosen from seed {_seed()}")
    document = run(out, mode, only, jobs, _say, sabotage)
    body = document.body
    for item in body.outcomes:
        if not is_right(item):
            _say(f"not as expected: {item.id}")
    deliver(format, None, renderers)
    return {"pass": 0, "fail": 1, "incomplete": 4}[body.status]


def _seed() -> int:
    from cke.validator.choose import SEED

    return SEED


def _line(body: object) -> str:
    from cke.schemas.validator_selftest import Selftest

    assert isinstance(body, Selftest)
    score = body.score
    return (
        f"{body.status}: {score.injected} injected, {score.edge_exact} first edges exact, "
        f"{score.class_right} classes and {score.owner_right} owners right, {score.confirmed} "
        f"confirmed, {score.declined} declined, {score.missed} missed, {score.wrong} wrong; "
        f"{score.false_positives} of {score.controls} controls flagged; {score.failed} failed"
    )


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
