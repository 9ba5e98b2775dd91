"""How artifacts are refused: requests and captures by the runner, documents by the readers."""

from pathlib import Path
from typing import NoReturn

from cke.errors import CkeError, Diagnostic, RejectedError

PREFIX = "lis: artifact error: "


class ArtifactError(CkeError):
    """An artifact cannot be captured or written; the text begins as the format's own lines do."""

    exit_code = 1

    def __str__(self) -> str:
        return "\n".join(PREFIX + item.message for item in self.diagnostics)


class UsageError(ArtifactError):
    """An artifact was asked for in a way that is refused before inference."""

    exit_code = 2


class UnsupportedError(UsageError):
    """The artifacts cannot describe this model; nothing is wrong with the request."""


def refuse_unsupported(message: str) -> NoReturn:
    """Refuse a model that the artifacts cannot describe."""
    raise UnsupportedError(Diagnostic(code="CKE860", message=message))


def refuse_request(message: str) -> NoReturn:
    """Refuse a combination of flags, or a request that the model cannot serve."""
    raise UsageError(Diagnostic(code="CKE860", message=message))


def refuse_capture(message: str) -> NoReturn:
    """Refuse to write what could not be captured as the format wants it."""
    raise ArtifactError(Diagnostic(code="CKE861", message=message))


def refuse_document(path: Path, where: str, message: str) -> NoReturn:
    """Refuse a document that contradicts its format or itself."""
    raise RejectedError(Diagnostic(code="CKE862", file=path.name, path=where, message=message))
