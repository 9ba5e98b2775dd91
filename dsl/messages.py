"""What a syntax error says: code, expected and got, and how to fix it.

`describe` turns what the lexer, the layout or the parser found into a failure at a token.
"""

from difflib import get_close_matches

import msgspec
from lark import Token
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from cke.dsl.layout import CLOSING, LINE_STRUCTURE, OPENING, BadBracket, BadDedent, Layout
from cke.dsl.tree import ConditionTwice, NumberTooLarge, SectionTwice, TooDeep
from cke.errors import Note

END = "end of line"
VALUE = frozenset({"INT", "FLOAT", "STRING", "LPAR", "NAME", "NONE", "TRUE"})
OPERATORS = frozenset({"PLUS", "TERM", "POWER", "CMP", "FALLBACK"})
SIGNS = {"LPAR": "(", "LSQB": "[", "LBRACE": "{", "RPAR": ")", "RSQB": "]", "RBRACE": "}"}
PHRASES = {
    **{name: f"`{sign}`" for name, sign in SIGNS.items()},
    "COLON": "`:`",
    "COMMA": "`,`",
    "EQUAL": "`=`",
    "AT": "`@`",
    "DOT": "`.`",
    "VBAR": "`|`",
    "STAR": "`*`",
    "SLASH": "`/`",
    "QUESTION": "`?`",
    "PLUS": "`+`",
    "MINUS": "`-`",
    "__ANON_0": "`->`",
    "NAME": "a name",
    "INT": "an integer",
    "FLOAT": "a number",
    "STRING": "a string",
    "_NL": END,
    "_INDENT": "an indented line",
    "_DEDENT": "the end of the section",
}
HEADS = ("schedule", "match", "map", "block", "parts", "taxonomy")


class Failure(msgspec.Struct, frozen=True):
    """A code, a message and a help."""

    code: str
    message: str
    help: str | None = None

    def notes(self) -> tuple[Note, ...]:
        """Return the help as a note."""
        return (Note(self.help, label="help"),) if self.help else ()


def item_start_failure(chunk: str, words: tuple[str, ...]) -> Failure:
    """Say which items exist; the nearest one when the word is close to it."""
    line = chunk.split("\n", 1)[0]
    got = line.split(" ", 1)[0].rstrip(":")
    near = get_close_matches(got, words, 1)
    return Failure(
        "CKE109",
        f"expected an item, got `{got}`",
        f"did you mean `{near[0]}`?" if near else f"items are {', '.join(words)}",
    )


def tree_failure(
    error: TooDeep | SectionTwice | ConditionTwice | NumberTooLarge, limit: int
) -> Failure:
    """Say what the parser accepts and no circuit may contain."""
    if isinstance(error, TooDeep):
        return Failure("CKE114", f"text nests deeper than {limit} levels", "name its parts")
    if isinstance(error, SectionTwice):
        return Failure("CKE116", f"the block has a second section `{error.name}`", "merge the two")
    if isinstance(error, ConditionTwice):
        return Failure("CKE117", "the part has a second `when`", "join the two with `and`")
    return Failure("CKE118", "the number is too large", "the largest has 18 digits")


def describe(
    error: UnexpectedInput | BadDedent | BadBracket, layout: Layout, chunk: str, first_line: int
) -> tuple[Failure, Token]:
    """Return what is wrong and the token at which it shows; lines count from `first_line`."""
    if isinstance(error, BadDedent):
        return _bad_dedent(error), _at_line_start(error.token, error.depth)
    if isinstance(error, BadBracket):
        return _bad_bracket(error, first_line), error.token
    if isinstance(error, UnexpectedCharacters):
        return _bad_character(error, chunk)
    assert isinstance(error, UnexpectedToken), error
    return _unexpected(error, layout, chunk, first_line)


def _bad_dedent(error: BadDedent) -> Failure:
    depths = " or ".join(map(str, error.open_depths))
    return Failure(
        "CKE106",
        f"expected an indentation of {depths} spaces, got {error.depth}",
        "a section's rows stand two spaces deeper than its head",
    )


def _at_line_start(newline: Token, depth: int) -> Token:
    line = (newline.line or 1) + newline.count("\n")
    return Token("_NL", "", line=line, column=depth + 1)


def _bad_bracket(error: BadBracket, first_line: int) -> Failure:
    if error.opened is None:
        return Failure("CKE113", f"`{error.token}` closes nothing")
    sign = SIGNS[OPENING[error.opened.type]]
    where = _place(error.opened, first_line)
    return Failure(
        "CKE112",
        f"`{error.opened}` opened at {where} is not closed before `{error.token}`",
        f"expected `{sign}`",
    )


def _place(token: Token, first_line: int) -> str:
    return f"{(token.line or 1) + first_line - 1}:{token.column}"


def _bad_character(error: UnexpectedCharacters, chunk: str) -> tuple[Failure, Token]:
    token = Token("CHARACTER", error.char, line=error.line, column=error.column)
    if error.char == '"':
        return Failure("CKE107", "the string is not closed on its line", 'end it with `"`'), token
    if error.char == "!":
        return Failure("CKE102", "unexpected character `!`", "write `not`, or `!=`"), token
    return Failure("CKE102", f"unexpected character `{error.char}`"), token


def _unexpected(
    error: UnexpectedToken, layout: Layout, chunk: str, first_line: int
) -> tuple[Failure, Token]:
    token = error.token
    expected = set(error.accepts or error.expected) - {"$END"}
    late = _line_head(layout, token)
    if layout.brackets and (token.type == "$END" or late is not None):
        return _unclosed(layout.brackets[-1], late or token, first_line)
    previous = _previous(layout, token)
    got = _got(token)
    if token.type in LINE_STRUCTURE or token.type == "$END":
        token = _after(previous, token)
    if token.type == "QUESTION" and expected & OPERATORS:
        message = f"expected an operator or {END}, got `?`"
        return Failure("CKE111", message, "the fallback operator is `??`"), token
    if error.token.type == "_INDENT":
        return Failure("CKE108", "unexpected indentation"), error.token
    return _expected(expected, previous, got, chunk, token), token


def _unclosed(opened: Token, token: Token, first_line: int) -> tuple[Failure, Token]:
    where = _place(opened, first_line)
    if token.type == "$END":
        before, token = "the end of the item", opened
    else:
        before = f"`{token}`"
    return Failure("CKE112", f"`{opened}` opened at {where} is not closed before {before}"), token


def _line_head(layout: Layout, token: Token) -> Token | None:
    """Return the token that starts the line of `token`, if a row starts there by its look."""
    if not layout.brackets or token.type in LINE_STRUCTURE or token.type in CLOSING:
        return None
    head = next((other for other in layout.tokens if other.line == token.line), token)
    if head.line == layout.brackets[-1].line:
        return None
    starts = head is token or token.type == "EQUAL" or str(head) in ("return", "for")
    return head if starts else None


def _previous(layout: Layout, token: Token) -> Token | None:
    if token.type in LINE_STRUCTURE or token.type == "$END":
        return layout.tokens[-1] if layout.tokens else None
    # The lexer refuses some tokens before the layout sees them.
    seen = bool(layout.tokens) and layout.tokens[-1] is token
    before = layout.tokens[:-1] if seen else layout.tokens
    return before[-1] if before else None


def _after(previous: Token | None, token: Token) -> Token:
    if previous is None:
        return token
    return Token("_NL", "", line=previous.line, column=(previous.column or 1) + len(previous))


def _got(token: Token) -> str:
    if token.type == "_INDENT":
        return "an indented line"
    if token.type in LINE_STRUCTURE or token.type == "$END":
        return END
    return f"`{token}`"


def _expected(
    expected: set[str], previous: Token | None, got: str, chunk: str, token: Token
) -> Failure:
    after = f" after `{previous}`" if previous is not None else ""
    if expected == {"NAME"} and chunk.startswith("match") and previous is not None:
        kind = _match_kind(chunk, token)
        return Failure("CKE104", f"expected {kind}{after}, got {got}")
    if "COLON" in expected and got == END and not expected & VALUE:
        return Failure("CKE105", f"expected `:`{_after_head(chunk, token, previous)}, got {got}")
    if expected & OPERATORS and "_NL" in expected:
        return Failure("CKE111", f"expected an operator or {END}, got {got}")
    if VALUE <= expected:
        return Failure("CKE110", f"expected a value{after}, got {got}")
    if expected & OPERATORS:
        closing = sorted(PHRASES[name] for name in expected if name in CLOSING or name == "COLON")
        return Failure("CKE111", f"expected {_one_of(['an operator', *closing])}{after}, got {got}")
    return Failure("CKE110", f"expected {_one_of(_phrases(expected))}{after}, got {got}")


def _match_kind(chunk: str, token: Token) -> str:
    line = chunk.split("\n")[(token.line or 1) - 1]
    return "a class name" if line.lstrip().startswith("hf") else "an architecture name"


def _after_head(chunk: str, token: Token, previous: Token | None) -> str:
    line = chunk.split("\n")[(token.line or 1) - 1].strip()
    if " " in line and line.split(" ")[0] in HEADS:
        return f" after `{line}`"
    return f" after `{previous}`"


def _phrases(expected: set[str]) -> list[str]:
    return sorted(PHRASES.get(name, f"`{name.lower()}`") for name in expected)


def _one_of(phrases: list[str]) -> str:
    if len(phrases) == 1:
        return phrases[0]
    return f"{', '.join(phrases[:-1])} or {phrases[-1]}"
