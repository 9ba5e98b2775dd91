"""How the reader says no: one error, with the file and the JSON path that it is about."""

from typing import NoReturn

from cke.errors import CkeError, Diagnostic, Note

HELP = {
    "CKE840": "write the document as the packet format says, with every key and no other",
    "CKE841": "give a relative path to a regular file of the packet folder, once for each role",
    "CKE842": "export the packet again; its files must be exactly those that were hashed",
    "CKE843": "describe the payload exactly: packed, row-major, little-endian, within 32 MiB",
    "CKE844": "export again from one decode call of one causal, full-attention layer",
    "CKE845": "name a report that does not exist yet, in a folder that can be written",
    "CKE846": "give a mirror of the same request and layer, captured as the rows arrived",
    "CKE847": "select a confirmed decode step of a causal, full-attention layer",
    "CKE848": "give a packet of this model that `cke packet analyze` reports as analyzed",
}
"""The way out for each code; `cke explain CODE` says more."""


def refuse(
    code: str, message: str, *, file: str | None = None, path: str | None = None
) -> NoReturn:
    """Raise the refusal."""
    note = Note(HELP[code], label="help")
    raise CkeError(Diagnostic(code=code, message=message, file=file, path=path, notes=(note,)))


class PacketUnsupported(Exception):
    """A well-formed packet whose selection v1 cannot analyse; `reasons` say why."""

    def __init__(self, reasons: tuple[str, ...]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons
