"""One packet in, one report out: analyzed, inconclusive or refused, never a verdict.

Exit codes: 0 when the selection is supported (analyzed, or inconclusive because the step or its
values admit no reference), 2 when it is not supported or the packet is refused.
"""

import platform
from pathlib import Path

import msgspec
import numpy as np
from msgspec import UNSET

import cke
from cke.attention_packet.comparisons import Inputs, compare_references
from cke.attention_packet.documents import Documents, read_documents
from cke.attention_packet.geometry import (
    Sizes,
    check_geometry,
    check_payload_descriptions,
    read_scale,
    tensor_entries,
)
from cke.attention_packet.mirror import check_mirror
from cke.attention_packet.payload import NativeTensor, compare_last_row, read_payloads
from cke.attention_packet.refusal import PacketUnsupported
from cke.attention_packet.selection import (
    LAST_ROW_DIFFERS,
    NO_INTERPRETATION,
    NONFINITE_INPUT,
    NONFINITE_RESULT,
    admission_reasons,
    unsupported_reasons,
)
from cke.errors import CkeError
from cke.schemas.attention_packet import (
    Additions,
    Analysis,
    AnalysisGeometry,
    LastRowConsistency,
    MirrorCheck,
    Refusal,
    RuntimeVersions,
    Sample,
    Scale,
    Selection,
)

LIMITATIONS = (
    "The original-Q reference is an independent FP32 calculation, not exact real arithmetic; the "
    "report is diagnostic only and certifies no operator replay, full-history storage, token "
    "equality or release gate.",
    "The model and the input are identified by the recorded hashes alone: weights and requests are "
    "not reopened, nothing is authenticated, and the packet says nothing about the probe "
    "executable, which the run evidence outside the packet binds.",
    "Reconciling the packet with its snapshot does not prove that the capture's fence and lifetime "
    "code was right.",
    "The last-row check can find a mismatched selected write; identical gather and decode layout "
    "faults, or earlier missing history, need an independently captured incoming-KV mirror. "
    "Cross-backend tensor identity and same-input native operator replay are separate work.",
)
ADDITIONS_LABEL = (
    "added by CKE to darkbloom.attention-analysis.v1; nothing here replaces the original-Q FP32 "
    "reference or changes the status"
)


class Outcome(msgspec.Struct, frozen=True):
    """The report and the exit code that goes with it."""

    analysis: Analysis
    exit_code: int


def analyze(packet_json: Path, mirror: Path | None = None) -> Outcome:
    """Analyse one packet; every bad input is an outcome, none is an exception."""
    documents: Documents | None = None
    try:
        documents = read_documents(packet_json)
        return Outcome(_analyze(documents, mirror), 0)
    except PacketUnsupported as unsupported:
        assert documents is not None
        return Outcome(_unsupported(documents, unsupported.reasons), 2)
    except CkeError as error:
        return Outcome(refused(error, documents), 2)


def refused(error: CkeError, documents: Documents | None = None) -> Analysis:
    """The report of a refused packet: the first diagnostic, and the hashes that are known."""
    first = error.diagnostics[0]
    return Analysis(
        status="refused",
        refusal=Refusal(code=first.code, message=first.message, file=first.file, path=first.path),
        packet_sha256=documents.packet_sha256 if documents else None,
        metadata_sha256=documents.metadata_sha256 if documents else None,
        runtime=runtime_versions(),
        limitations=LIMITATIONS,
    )


def _unsupported(documents: Documents, reasons: tuple[str, ...]) -> Analysis:
    return Analysis(
        status="inconclusive",
        inconclusive_reasons=reasons,
        interpretation=NO_INTERPRETATION,
        packet_sha256=documents.packet_sha256,
        metadata_sha256=documents.metadata_sha256,
        identity=documents.packet.identity,
        sample=_sample(documents),
        runtime=runtime_versions(),
        limitations=LIMITATIONS,
    )


def _analyze(documents: Documents, mirror: Path | None) -> Analysis:
    check_payload_descriptions(documents.packet)
    unsupported = unsupported_reasons(documents)
    if unsupported:
        raise PacketUnsupported(unsupported)
    sizes = check_geometry(documents)
    tensors = read_payloads(documents.folder, tensor_entries(documents.packet))
    history = check_mirror(mirror, documents, tensors) if mirror else None
    return _report(documents, sizes, tensors, history)


def _report(
    documents: Documents,
    sizes: Sizes,
    tensors: dict[str, NativeTensor],
    history: MirrorCheck | None,
) -> Analysis:
    packet, record = documents.packet, documents.snapshot.records[0]
    unconfirmed = admission_reasons(documents)
    reasons = list(unconfirmed)
    nonfinite = {name: tensor.count_nonfinite() for name, tensor in tensors.items()}
    if any(nonfinite[name].total for name in ("queries", "storedKeys", "storedValues")):
        reasons.append(NONFINITE_INPUT)
    scale = read_scale(record)
    found = None
    if not reasons:
        found = compare_references(Inputs(tensors, sizes, scale))
        if found.nonfinite:
            reasons.append(NONFINITE_RESULT)
    last_row = LastRowConsistency(
        stored_keys=compare_last_row(tensors["storedKeys"], tensors["incomingKeys"]),
        stored_values=compare_last_row(tensors["storedValues"], tensors["incomingValues"]),
    )
    if _mismatched(last_row):
        reasons.append(LAST_ROW_DIFFERS)
    return Analysis(
        status="inconclusive" if reasons else "analyzed",
        inconclusive_reasons=tuple(reasons),
        interpretation=NO_INTERPRETATION if unconfirmed else None,
        packet_sha256=documents.packet_sha256,
        metadata_sha256=documents.metadata_sha256,
        identity=packet.identity,
        selection=Selection(
            **{name: getattr(record, name) for name in Selection.__struct_fields__}
        ),
        sample=_sample(documents),
        geometry=_geometry(documents, sizes),
        scale=Scale(bits=record.scale_bits, value=scale),
        runtime=runtime_versions(),
        tensor_sha256={name: entry.sha256 for name, entry in tensor_entries(packet).items()},
        tensor_nonfinite=nonfinite,
        last_row_consistency=last_row,
        original_query_reference=found.original if found else None,
        reference_rounded_to_output_dtype=found.rounded if found else None,
        narrowed_query_counterfactual=found.narrowed if found else None,
        additions=Additions(
            label=ADDITIONS_LABEL,
            float64_comparison=found.float64 if found else None,
            incoming_mirror=history,
        ),
        limitations=LIMITATIONS,
    )


def _mismatched(last_row: LastRowConsistency) -> int:
    rows = (last_row.stored_keys, last_row.stored_values)
    return sum(row.mismatched_native_elements for row in rows)


def _sample(documents: Documents) -> Sample:
    snapshot = documents.snapshot
    return Sample(
        selected_forwards=snapshot.selected_forwards,
        expected_owner_count=snapshot.expected_owner_count,
        forward_succeeded=snapshot.forward_succeeded,
        sample_outcome=snapshot.sample_outcome,
        seed_token=None if snapshot.seed_token is UNSET else snapshot.seed_token,
        target_token=None if snapshot.target_token is UNSET else snapshot.target_token,
        refusals=dict(sorted(snapshot.refusals.items())),
        evaluation_status=documents.packet.capture.evaluation_status,
    )


def _geometry(documents: Documents, sizes: Sizes) -> AnalysisGeometry:
    packet, record = documents.packet, documents.snapshot.records[0]
    return AnalysisGeometry(
        **msgspec.structs.asdict(packet.geometry),
        query_heads=sizes.query_heads,
        kv_heads=sizes.kv_heads,
        query_heads_per_kv_head=sizes.group,
        tokens=sizes.tokens,
        head_dimension=sizes.width,
        multiply_add_terms=sizes.terms,
        dispatch=record.dispatch,
        kernel_output_dtype=record.kernel_output_dtype,
        dtypes={name: entry.dtype for name, entry in tensor_entries(packet).items()},
    )


def runtime_versions() -> RuntimeVersions:
    """What computes the report."""
    return RuntimeVersions(
        cke=cke.__version__,
        python=platform.python_version(),
        numpy=np.__version__,
        msgspec=msgspec.__version__,
    )
