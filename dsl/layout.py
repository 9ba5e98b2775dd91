"""Line structure: indents, dedents and free newlines inside brackets, as a lark postlex."""

from collections.abc import Iterator

from lark.exceptions import LarkError
from lark.lark import PostLex
from lark.lexer import Token

OPENING = {"LPAR": "RPAR", "LSQB": "RSQB", "LBRACE": "RBRACE"}
CLOSING = {closing: opening for opening, closing in OPENING.items()}
LINE_STRUCTURE = ("_NL", "_INDENT", "_DEDENT")


class BadDedent(LarkError):
    """A line returns to a depth at which no section is open."""

    def __init__(self, token: Token, depth: int, open_depths: tuple[int, ...]) -> None:
        super().__init__()
        self.token, self.depth, self.open_depths = token, depth, open_depths


class BadBracket(LarkError):
    """A bracket that closes nothing, or not what is open."""

    def __init__(self, token: Token, opened: Token | None) -> None:
        super().__init__()
        self.token, self.opened = token, opened


class Layout(PostLex):
    """Turns newlines into `_NL`, `_INDENT` and `_DEDENT`; knows the open brackets at an error.

    `tokens` are those that the parser was given, `brackets` the open ones.
    """

    always_accept = ("_NL",)

    def __init__(self) -> None:
        self.brackets: list[Token] = []
        self.tokens: list[Token] = []

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        """Yield the tokens of one item, with the line structure made explicit."""
        self.brackets, self.tokens = [], []
        depths = [0]
        last = None
        for last in stream:
            if last.type == "_NL":
                if not self.brackets:
                    yield last
                    yield from _depth_changes(last, depths)
                continue
            self._match_bracket(last)
            self.tokens.append(last)
            yield last
        while len(depths) > 1:
            depths.pop()
            yield Token.new_borrow_pos("_DEDENT", "", last) if last else Token("_DEDENT", "")

    def _match_bracket(self, token: Token) -> None:
        if token.type in OPENING:
            self.brackets.append(token)
        elif token.type in CLOSING:
            opened = self.brackets.pop() if self.brackets else None
            if opened is None or OPENING[opened.type] != token.type:
                raise BadBracket(token, opened)


def _depth_changes(newline: Token, depths: list[int]) -> Iterator[Token]:
    depth = len(newline.rsplit("\n", 1)[1])
    before = tuple(depths)
    if depth > depths[-1]:
        depths.append(depth)
        line = (newline.line or 1) + newline.count("\n")
        yield Token("_INDENT", "", line=line, column=depth + 1, end_line=line, end_column=depth + 1)
        return
    while depth < depths[-1]:
        depths.pop()
        yield Token.new_borrow_pos("_DEDENT", "", newline)
    if depth != depths[-1]:
        raise BadDedent(newline, depth, before)
