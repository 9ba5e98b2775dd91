"""The reports beside a diagnosis: ranking, state, sensitivity; what the captures allow."""

from pathlib import Path
from typing import Any

import msgspec

from cke.errors.files import write_atomically
from cke.schemas import attention_sensitivity, ranking_report, state_report
from cke.schemas.diagnosis import Companion, Diagnosis
from cke.schemas.reading import canonical_sha256, to_json
from cke.xray.case import Case
from cke.xray.ranking import ranking_report as rank
from cke.xray.sensitivity import sensitivity_report as measure_attention
from cke.xray.state import state_report as look_at_state

FILES: dict[str, str] = {
    state_report.SCHEMA: "state.json",
    ranking_report.SCHEMA: "ranking.json",
    attention_sensitivity.SCHEMA: "sensitivity.json",
}
"""The file of each companion in the run directory; a page polls these names and no other."""


def with_companions(case: Case, report: Diagnosis, folder: Path) -> Diagnosis:
    """Write every companion that the captures allow, and return the report that cites them."""
    rows = case.ordered() if case.pairs else []
    made: dict[str, tuple[Any, Any]] = {}
    if case.bodies is not None:
        body = look_at_state(case, case.bodies, rows)
        made[state_report.SCHEMA] = (state_report.Document, body)
    if case.pairs:
        made[ranking_report.SCHEMA] = (ranking_report.Document, rank(case, report))
        sensitivity = measure_attention(case, rows, report.subject, report.oracle)
        made[attention_sensitivity.SCHEMA] = (attention_sensitivity.Document, sensitivity)
    companions = []
    for schema, file in FILES.items():
        document, body = made.get(schema, (None, None))
        if document is None or body is None:
            folder.joinpath(file).unlink(missing_ok=True)
            continue
        digest = canonical_sha256(body)
        whole = document(schema=schema, version=1, body=body, body_sha256=digest)
        write_atomically(folder / file, to_json(whole))
        companions.append(Companion(schema=schema, file=file, body_sha256=digest))
    return msgspec.structs.replace(report, companions=tuple(companions))
