"""`cke fidelity`'s records of humans and of other tools: approvals, repeat studies, base logits."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def repeat_study(*captures: Path, out: Annotated[Path, Parameter(help="The study's file.")]) -> int:
    """Score every pair of three captures of one reference: the floor of a non-zero baseline.

    Parameters
    ----------
    captures
        Three folders that `capture` wrote over the same tokens.
    """
    from cke.errors.files import write_atomically
    from cke.fidelity.repeat import repeat_study as study
    from cke.fidelity.suite import pretty

    found = study(list(captures))
    write_atomically(out, pretty(found))
    print(f"floor {found['floor']!r}")
    return 0


def approve(
    law: int,
    /,
    *,
    approver: str,
    justification: str,
    out: Annotated[Path, Parameter(help="The approvals' file, begun or gone on with.")],
) -> int:
    """Record a named human's approval of a deviation, which is printed beside every number.

    Parameters
    ----------
    law
        The law's number; most permit no override.
    approver
        Who approves: a person's name.
    justification
        Why.
    """
    from cke.errors.files import write_atomically
    from cke.fidelity.overrides import approved
    from cke.fidelity.score import utc_now
    from cke.fidelity.suite import pretty
    from cke.schemas.reading import read_json

    entry = {"approver": approver, "justification": justification, "timestamp": utc_now()}
    found = approved(read_json(out) if out.is_file() else {}, law, entry)
    write_atomically(out, pretty(found))
    print(f"law {law} approved by {approver}; only where {found[str(law)]['case']}")
    return 0


def base_logits(
    model: Path,
    /,
    *,
    base: Annotated[Path, Parameter(help="The file that llama.cpp's perplexity tool wrote.")],
    out: Annotated[Path, Parameter(help="The report's file.")],
    bos: bool = False,
) -> int:
    """Compare a model with a base-logits file of llama.cpp; exploratory, never published.

    Parameters
    ----------
    model
        A folder, a .gguf file, or a folder that `quantise` wrote.
    bos
        Put the model's first token at the start of each chunk, as the tool does where it adds one.
    """
    from cke.api.fidelity import logits_of
    from cke.errors.files import write_atomically
    from cke.fidelity.base_logits import read_base, score_base
    from cke.fidelity.suite import pretty

    found = read_base(base)
    logits, first = logits_of(model, bos=bos)
    report = score_base(found, logits, model.name, first)
    write_atomically(out, pretty(report))
    print(f"mean_kld {report['mean_kld']!r} (exploratory)")
    print(f"as the tool sums it: {report['mean_kld_as_the_tool_sums']!r}")
    for law, text in report["lacks"].items():
        print(f"law {law}: {text}")
    return 0
