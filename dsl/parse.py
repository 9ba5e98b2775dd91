"""Circuit text to a syntax tree: `parse(text, file)`; every broken item is reported at once.

A line that starts in column 0 starts an item, and each item is parsed alone. Goal: one error per
broken item, with a text that says what to write. Non-goal: meaning.
"""

import hashlib
import re
from functools import cache
from threading import Lock

from lark import Lark, Token
from lark.exceptions import UnexpectedInput

from cke.dsl import syntax, tables
from cke.dsl.layout import LINE_STRUCTURE, BadBracket, BadDedent, Layout
from cke.dsl.messages import Failure, describe, item_start_failure, tree_failure
from cke.dsl.tree import ConditionTwice, NumberTooLarge, SectionTwice, TooDeep, TreeBuilder
from cke.errors import CkeError, Diagnostic, Span

PARSING = Lock()
"""Held while an item is parsed: the parser's layout has the brackets that are open in it."""

DEPTH_LIMIT = 100
SIZE_LIMIT = 1 << 20
COMMENT = re.compile(r'"[^"\n]*"|(#[^\n]*)')
ITEM_WORDS = (
    "circuit",
    "use",
    "model",
    "match",
    "config",
    "schedule",
    "numerics",
    "block",
    "parts",
    "map",
    "taxonomy",
    "ignore",
)


class SyntaxErrors(CkeError):
    """Text that is not a circuit: one diagnostic for every broken item."""


def parse(text: str | bytes, file: str, only: tuple[str, ...] | None = None) -> syntax.File:
    """Return the syntax tree of `text`; SyntaxErrors with one diagnostic per broken item.

    With `only`, items that start with another word are left out unread.
    """
    source = _Source(text, file)
    items: list[syntax.Item] = []
    for first_line, chunk in source.chunks():
        if only is not None and not chunk.startswith(only):
            continue
        item = source.parse_item(first_line, chunk)
        if item is not None:
            items.append(item)
    if source.diagnostics:
        raise SyntaxErrors(source.diagnostics)
    return syntax.File(
        name=file,
        items=tuple(items),
        comments=source.comments(),
        text=source.text,
        sha256=source.sha256,
    )


class _Source:
    """One file while it is parsed; collects the diagnostics."""

    def __init__(self, text: str | bytes, file: str) -> None:
        data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
        self.file = file
        self.sha256 = hashlib.sha256(data).hexdigest()
        self.diagnostics: list[Diagnostic] = []
        self.text = self._decode(data)
        self.lines = self.text.split("\n")

    def _decode(self, data: bytes) -> str:
        if len(data) > SIZE_LIMIT:
            raise SyntaxErrors(
                _whole(
                    self.file,
                    "CKE115",
                    f"a circuit file is at most {SIZE_LIMIT} bytes, got {len(data)}",
                )
            )
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            message = f"expected UTF-8 text, got byte {data[error.start]:#04x} at {error.start}"
            raise SyntaxErrors(_whole(self.file, "CKE103", message)) from None
        return text.replace("\r\n", "\n")

    def chunks(self) -> list[tuple[int, str]]:
        """Return the items as (first line, text); text before the first item is an error."""
        starts = [
            i
            for i, line in enumerate(self.lines)
            if line[:1] not in ("", " ", "#", ")", "]", "}", "\t")
        ]
        head = self.lines[: starts[0]] if starts else self.lines
        for number, line in enumerate(head, 1):
            if line.strip() and not line.lstrip().startswith("#"):
                self._fail(
                    number,
                    _first_word(line),
                    Failure(
                        "CKE108", "expected an item at the start of the line, got an indented line"
                    ),
                )
                break
        ends = [*starts[1:], len(self.lines)][: len(starts)]
        return [
            (start + 1, "\n".join(self.lines[start:end]).rstrip("\n") + "\n")
            for start, end in zip(starts, ends, strict=True)
        ]

    def parse_item(self, first_line: int, chunk: str) -> syntax.Item | None:
        """Return the item, or None after recording what is wrong with it."""
        tab = chunk.find("\t")
        if tab >= 0:
            line = first_line + chunk.count("\n", 0, tab)
            column = tab - chunk.rfind("\n", 0, tab)
            self._fail(
                line,
                (column, column + 1),
                Failure("CKE101", "tabs are not allowed", "indent by two spaces"),
            )
            return None
        word = re.match(r"\w*", chunk)
        if word is None or word[0] not in ITEM_WORDS:
            self._fail(first_line, _first_word(chunk), item_start_failure(chunk, ITEM_WORDS))
            return None
        return self._parse(first_line, chunk)

    def _parse(self, first_line: int, chunk: str) -> syntax.Item | None:
        with PARSING:
            parser, layout = _parser()
            try:
                tree = parser.parse(chunk)
            except (UnexpectedInput, BadDedent, BadBracket) as error:
                failure, token = describe(error, layout, chunk, first_line)
                line, column = token.line or 1, token.column or 1
                self._fail(line + first_line - 1, (column, column + _width(token)), failure)
                return None
        try:
            return TreeBuilder(self.file, first_line, DEPTH_LIMIT).build(tree)
        except (TooDeep, SectionTwice, ConditionTwice, NumberTooLarge) as error:
            self._fail_at(error.span, tree_failure(error, DEPTH_LIMIT))
            return None

    def _fail(self, line: int, columns: tuple[int, int], failure: Failure) -> None:
        self._fail_at(Span(self.file, line, columns[0], line, columns[1]), failure)

    def _fail_at(self, span: Span, failure: Failure) -> None:
        self.diagnostics.append(
            Diagnostic(
                code=failure.code,
                message=failure.message,
                span=span,
                source=self.lines[span.line - 1],
                notes=failure.notes(),
            )
        )

    def comments(self) -> tuple[syntax.Comment, ...]:
        """Return the comments in order."""
        found: list[syntax.Comment] = []
        for number, line in enumerate(self.lines, 1):
            for match in COMMENT.finditer(line) if "#" in line else ():
                if match[1] is not None:
                    found.append(_comment(self.file, number, match, line))
        return tuple(found)


def _comment(file: str, number: int, match: re.Match[str], line: str) -> syntax.Comment:
    column = match.start() + 1
    text = match[1].rstrip()
    return syntax.Comment(
        text=text,
        own_line=not line[: match.start()].strip(),
        span=Span(file, number, column, number, column + len(text)),
    )


def _whole(file: str, code: str, message: str) -> Diagnostic:
    return Diagnostic(code=code, message=message, file=file)


def _first_word(line: str) -> tuple[int, int]:
    indent = len(line) - len(line.lstrip())
    word = re.match(r"\w+|\S", line[indent:])
    return indent + 1, indent + 1 + (len(word[0]) if word else 1)


def _width(token: Token) -> int:
    return 1 if token.type in LINE_STRUCTURE else max(1, len(token))


def _is_written(part: object) -> bool:
    return not (isinstance(part, Token) and part.type in LINE_STRUCTURE)


@cache
def _parser() -> tuple[Lark, Layout]:
    layout = Layout()
    return tables.load(postlex=layout, propagate_positions=_is_written), layout
