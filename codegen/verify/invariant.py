"""How a verifier reports: all problems of a level at once, with the text of the IR attached."""

from cke.codegen.dump import AnyIR, dump


class InvariantError(AssertionError):
    """An IR that a pass must never give: our own bug, not the user's."""


def require_none(problems: list[str], ir: AnyIR) -> None:
    """Raise one error that lists every problem; return when there is none."""
    if not problems:
        return
    error = InvariantError("\n".join(problems))
    error.add_note(dump(ir))
    raise error
