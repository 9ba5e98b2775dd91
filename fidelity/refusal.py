"""How fidelity says no: one error with everything that is wrong, and the way out."""

from collections.abc import Iterable
from typing import NoReturn

from cke.errors import CkeError, Diagnostic, Note, RejectedError

HELP = {
    "CKE870": "build the suite again from its texts; nothing of a suite is edited in place",
    "CKE871": "ask for fewer or shorter contexts, or give more texts",
    "CKE872": "take a new capture under these settings, or score under those of the capture",
    "CKE873": "take the capture again, to the end",
    "CKE874": "capture with `--storage logits`",
    "CKE875": "the measurement is not used; find which side computes something else",
    "CKE876": "read the receipt; what a law forbids is measured again, not relabelled",
    "CKE877": "remove the credential, revoke it, and assemble again",
    "CKE878": "write the candidate again with `cke fidelity quantise`",
    "CKE879": "freeze the parameters on the analysis partition with `cke fidelity freeze` first",
    "CKE880": "rescore the candidates that share a mean; compare only rows of one key",
    "CKE881": "capture the teacher's routes again over the same tokens",
}
"""The way out for each code; `cke explain CODE` says more."""


def refuse(
    code: str, messages: str | Iterable[str], *, file: str | None = None, path: str | None = None
) -> NoReturn:
    """Raise the refusal; several messages are several diagnostics of one error."""
    listed = [messages] if isinstance(messages, str) else list(messages)
    assert listed, "a refusal says why"
    note = Note(HELP[code], label="help")
    rejected = code in ("CKE875", "CKE876", "CKE877", "CKE880", "CKE881")
    kind = RejectedError if rejected else CkeError
    raise kind(
        [
            Diagnostic(
                code=code,
                message=message,
                file=file,
                path=path,
                notes=(note,) if index == len(listed) - 1 else (),
            )
            for index, message in enumerate(listed)
        ]
    )
