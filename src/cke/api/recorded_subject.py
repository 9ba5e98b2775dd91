"""A recorded trace as the subject of X-Ray: with the model that was traced, or without it."""

import shutil
import time
from copy import copy
from pathlib import Path

import msgspec

from cke.api.diagnosis import ModelSubject, opened_side
from cke.api.evidence import identity_of
from cke.api.model import Model
from cke.api.report_files import with_progress, write_report
from cke.api.requests import recorded_request
from cke.errors import Diagnostic, Note, RejectedError
from cke.runtime.records import split_id
from cke.runtime.schedule import CaptureRequest
from cke.runtime.trace_reader import TraceFolder, read_trace
from cke.runtime.trace_writer import DOCUMENT
from cke.schemas.diagnosis import Diagnosis
from cke.schemas.reading import canonical_sha256
from cke.xray.traces import diagnose_trace


class RecordedSubject(ModelSubject):
    """A trace of a model, with the model: what it captured is all that is captured."""

    def __init__(self, model: Model, folder: Path) -> None:
        super().__init__(model)
        self.trace = subject_trace_of(folder)
        self._check(folder)

    def capture(self, request: CaptureRequest, out: Path) -> TraceFolder:
        """Return the trace with the records that are asked for, as a run would have kept them."""
        document = self.trace.trace
        wanted = (r for r in document.body.records if request.wants(*split_id(r.checkpoint_id)))
        body = msgspec.structs.replace(document.body, records=tuple(wanted))
        kept = copy(self.trace)
        kept.trace = msgspec.structs.replace(document, body=body)
        return kept

    def _check(self, folder: Path) -> None:
        """Raise RejectedError for a trace of other weights or of another build of the circuit."""
        known = self.trace.trace.body.identity
        built = self.model.capturing(())
        pairs = (
            ("model_sha256", known.model_sha256, identity_of(self.model.files).model_sha256),
            ("manifest_sha256", known.manifest_sha256, canonical_sha256(built.manifest)),
        )
        for key, recorded, given in pairs:
            if recorded is not None and recorded != given:
                raise _refused(
                    folder,
                    f"$.body.identity.{key}",
                    f"expected the trace of this model and circuit, `{str(given)[:12]}`, got one "
                    f"of `{recorded[:12]}`",
                    "give the model, the circuit and the dtype that were traced",
                )


def subject_trace_of(folder: Path) -> TraceFolder:
    """Return the trace of a subject; a trace of an oracle is refused."""
    trace = read_trace(folder)
    side = trace.trace.body.side
    if side != "subject":
        raise _refused(
            folder, "$.body.side", f"expected the trace of a subject, got that of an {side}",
            "write one with `cke trace`",
        )  # fmt: skip
    return trace


def xray_trace(
    subject: str | Path,
    *,
    oracle: str | Path,
    out: str | Path,
    oracle_model: str | Path | None = None,
    second: tuple[Diagnosis, str] | None = None,
    since: tuple[Diagnosis, str] | None = None,
    reproduce: str | None = None,
) -> Diagnosis:
    """Diagnose a recorded trace without its model; the report is written under `out`.

    A live oracle runs the trace's own tokens and forwards on `oracle_model`. `second` and `since`
    are earlier reports with their sha256: of another oracle, and of the run that is repeated.
    """
    start = time.monotonic()
    trace = subject_trace_of(Path(subject))
    side = opened_side(oracle, oracle_model, trace.trace.body.producer.dtype)
    shutil.rmtree(Path(out) / "rounds", ignore_errors=True)
    report = diagnose_trace(
        trace,
        side,
        recorded_request(trace),
        Path(out) / "rounds",
        reproduce=reproduce or f"cke xray --subject {subject} --oracle {oracle} --out {out}",
        second=None if second is None else second[0],
        second_sha256=None if second is None else second[1],
    )
    if since is not None:
        report = with_progress(report, *since)
    write_report(report, Path(out), time.monotonic() - start)
    return report


def _refused(folder: Path, path: str, message: str, help: str) -> RejectedError:
    return RejectedError(
        Diagnostic(
            code="CKE734",
            file=f"{folder.name}/{DOCUMENT}",
            path=path,
            message=message,
            notes=(Note(help, label="help"),),
        )
    )
