"""`cke lsp`: a language server on stdin and stdout for editors.

Diagnostics on open and change, the origin of a name on hover, formatting. Non-goal: completion.
"""

from pathlib import Path
from urllib.parse import unquote, urlparse

from lsprotocol import types
from pygls.lsp.server import LanguageServer

import cke
from cke.dsl.check import check_circuit
from cke.dsl.expand import origins
from cke.dsl.flatten import circuit_head
from cke.dsl.format import format_text
from cke.dsl.parse import parse
from cke.dsl.resolve import load_circuit
from cke.errors import CkeError, Diagnostic

Changed = types.DidOpenTextDocumentParams | types.DidChangeTextDocumentParams


def lsp() -> None:
    """Serve editors over stdin and stdout."""
    make_server().start_io()


def make_server() -> LanguageServer:
    """Return a server with its features registered."""
    server = LanguageServer("cke", cke.__version__)
    server.feature(types.TEXT_DOCUMENT_DID_OPEN)(_publish)
    server.feature(types.TEXT_DOCUMENT_DID_CHANGE)(_publish)
    server.feature(types.TEXT_DOCUMENT_FORMATTING)(_formatted)
    server.feature(types.TEXT_DOCUMENT_HOVER)(_hover)
    return server


def _publish(server: LanguageServer, params: Changed) -> None:
    uri = params.text_document.uri
    text = server.workspace.get_text_document(uri).source
    found = [as_lsp(item) for item in diagnostics(path_of(uri), text)]
    server.text_document_publish_diagnostics(
        types.PublishDiagnosticsParams(uri=uri, diagnostics=found)
    )


def diagnostics(path: Path, text: str) -> tuple[Diagnostic, ...]:
    """Return what is wrong with a file as an editor holds it."""
    data = text.encode("utf-8", "surrogatepass")
    try:
        if circuit_head(parse(data, path.name)) is not None:
            check_circuit(load_circuit(path, data))
    except CkeError as error:
        return error.diagnostics
    return ()


def as_lsp(item: Diagnostic) -> types.Diagnostic:
    """Return a diagnostic as the protocol spells it; without a span it is at the first line."""
    zero = types.Position(0, 0)
    place = types.Range(zero, zero)
    if item.span is not None:
        place = types.Range(
            types.Position(item.span.line - 1, item.span.column - 1),
            types.Position(item.span.end_line - 1, item.span.end_column - 1),
        )
    notes = [
        f"{note.label}: {note.text}{f' {note.span}' if note.span else ''}" for note in item.notes
    ]
    return types.Diagnostic(
        range=place,
        message="\n".join([item.message, *notes]),
        severity=types.DiagnosticSeverity.Error,
        code=item.code,
        source="cke",
    )


def _formatted(
    server: LanguageServer, params: types.DocumentFormattingParams
) -> list[types.TextEdit] | None:
    document = server.workspace.get_text_document(params.text_document.uri)
    try:
        text = format_text(document.source, path_of(params.text_document.uri).name)
    except CkeError:
        return None
    whole = types.Range(types.Position(0, 0), types.Position(len(document.lines), 0))
    return [types.TextEdit(range=whole, new_text=text)]


def _hover(server: LanguageServer, params: types.HoverParams) -> types.Hover | None:
    document = server.workspace.get_text_document(params.text_document.uri)
    word = document.word_at_position(params.position)
    text = hover_text(path_of(params.text_document.uri), document.source, word)
    return None if text is None else types.Hover(contents=text)


def hover_text(path: Path, text: str, word: str) -> str | None:
    """Return where a name of the flattened circuit was written, and that line."""
    try:
        circuit = load_circuit(path, text.encode("utf-8", "surrogatepass"))
    except CkeError:
        return None
    span = origins(circuit).get(word)
    return None if span is None else f"{circuit.line(span).strip()}\n\n{span.file}:{span.line}"


def path_of(uri: str) -> Path:
    """Return the path of a file URI."""
    return Path(unquote(urlparse(uri).path))
