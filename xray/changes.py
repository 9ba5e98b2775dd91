"""A counterfactual in words: the same in reasons, on the screen and in a rejudgement."""

from cke.schemas.diagnosis import Counterfactual


def described(change: Counterfactual) -> str:
    """Return a change in words: what, and from which value to which."""
    old, new = shown_value(change.old), shown_value(change.new)
    if change.kind == "insertion" and change.what == "bias":
        return "a bias added"
    if change.kind == "insertion":
        name, _, operand = change.what.partition(" of ")
        amount = "" if new == name else f" of {new}"
        return f"a `{name}`{amount} " + (f"on {operand}" if operand else "after it")
    if change.kind == "operand" and change.old is None:
        after = "" if " of operand " in change.what else " after it"
        return f"{change.what} (`{new}`){after}"
    if change.kind == "operand":
        return f"`{new}` in place of `{old}` as {change.what}"
    if change.kind == "operator":
        return f"{new if ' ' in new else f'`{new}`'} in place of `{old}`"
    if change.kind == "position":
        return f"positions `{new}` in place of those that the oracle states"
    return f"`{change.what}` {new} in place of {old}"


def with_origin(change: Counterfactual) -> str:
    """Return a change in words, with where its value is from."""
    return f"{described(change)} ({change.origin})"


def shown_value(value: object) -> str:
    """Return a value as a circuit writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value) if value != int(value) or abs(value) >= 1e15 else f"{value:.1f}"
    if isinstance(value, list | tuple):
        return ", ".join(map(shown_value, value))
    return "none" if value is None else str(value)
