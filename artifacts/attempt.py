"""One attempt of a verification: its folder, its ledger, its report.

The folder has mode 0700, the ledger 0600; the ledger is JSON lines, numbered without a gap, each
synced before the next stage begins.
"""

import json
import os
import secrets
from pathlib import Path
from typing import Any

import msgspec

from cke.artifacts.refusal import refuse_capture
from cke.artifacts.verification_markdown import render_verification
from cke.artifacts.writing import write_file
from cke.schemas.verification_report import LedgerRecord, StageRecord, VerificationReport

LEDGER = "ledger.jsonl"
MAX_JSON = 1 << 20
MAX_MARKDOWN = 64 << 10


class Attempt:
    """A new folder below `out`, named after the attempt's id."""

    def __init__(self, out: Path) -> None:
        token = secrets.token_hex(16)
        self.id = f"lisa1:{token}"
        self.folder = out / token
        self._records: list[LedgerRecord] = []
        try:
            out.mkdir(parents=True, exist_ok=True)
            self.folder.mkdir(mode=0o700)
            self._ledger = os.open(
                self.folder / LEDGER, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600
            )
        except OSError as error:
            refuse_capture(f"`{out.name}` cannot hold an attempt: {error.strerror}")
        self.note("attempt", "started")

    def note(self, stage: str, status: str, sha256: str | None = None) -> None:
        """Add a line to the ledger."""
        record = LedgerRecord(
            sequence=len(self._records),
            attempt_id=self.id,
            stage=stage,
            status=status,
            sha256=sha256,
        )
        os.write(self._ledger, msgspec.json.encode(record) + b"\n")
        os.fsync(self._ledger)
        self._records.append(record)

    @property
    def stages(self) -> tuple[StageRecord, ...]:
        """The stages so far."""
        return tuple(StageRecord(name=item.stage, status=item.status) for item in self._records)

    def keep(self, name: str, document: Any) -> None:
        """Keep a document of the attempt."""
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
        write_file(self.folder / name, text.encode() + b"\n")

    def finish(self, report: VerificationReport) -> None:
        """Write the report in both forms and close the ledger."""
        self.note("attempt", report.verdict)
        report = msgspec.structs.replace(report, stages=self.stages)
        raw = msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"
        text = render_verification(report).encode()
        if len(raw) > MAX_JSON or len(text) > MAX_MARKDOWN:
            refuse_capture("the verification report is larger than its bound")
        write_file(self.folder / "report.json", raw)
        write_file(self.folder / "report.md", text)

    def close(self) -> None:
        """Close the ledger."""
        os.close(self._ledger)
