"""Which selections v1 can analyse at all, and which of those admit the reference."""

from msgspec import UNSET

from cke.attention_packet.documents import Documents
from cke.schemas.attention_packet import Record

DISPATCHES = {
    "paged": ("paged_segmented_decode", "paged_fixed_decode"),
    "contiguous": ("contiguous_sdpa",),
}
PHASES = ("decode", "chained_decode")
MAX_QUERY_HEADS = 256
MAX_WIDTH = 1024
MAX_TERMS = 100_000_000

NOT_CONFIRMED = "selected step is not complete and confirmed"
NOT_COMPLETED = "tensor evaluation not completed"
LAST_ROW_DIFFERS = "stored last row differs bitwise from selected incoming K/V"
NONFINITE_INPUT = "nonfinite original Q or stored K/V"
NONFINITE_RESULT = "nonfinite output or FP32 reference"
NO_INTERPRETATION = "this selection cannot interpret the selected request decision"


def unsupported_reasons(documents: Documents) -> tuple[str, ...]:
    """Why the selection is outside v1; empty when it is inside."""
    packet, snapshot = documents.packet, documents.snapshot
    rules = [
        (snapshot.expected_owner_count != 1, "expectedOwnerCount is not 1"),
        (len(snapshot.records) != 1, "the snapshot does not hold exactly one record"),
        (packet.metadata.record_index != 0, "recordIndex is not 0"),
        (packet.geometry.attention != "full", "attention is not full"),
        (packet.geometry.is_bidirectional, "attention is bidirectional"),
        (packet.geometry.shares_kv, "the layer shares KV"),
        (packet.geometry.mtp_enabled, "MTP is enabled"),
        *(rule for record in snapshot.records for rule in _record_rules(record, documents)),
        *_size_rules(documents),
    ]
    return tuple(dict.fromkeys(reason for broken, reason in rules if broken))


def _record_rules(record: Record, documents: Documents) -> list[tuple[bool, str]]:
    backend = documents.packet.identity.backend
    return [
        (record.batch_size != 1, "batchSize is not 1"),
        (record.batch_index != 0, "batchIndex is not 0"),
        (record.input_width != 1, "inputWidth is not 1"),
        (record.phase not in PHASES, "phase is not decode or chained_decode"),
        (record.dispatch not in DISPATCHES[backend], f"dispatch is not one of {backend}"),
        (record.sinks_present, "sinks are present"),
        (record.softcap_present, "a softcap is present"),
        (record.spans_present, "spans are present"),
    ]


def _size_rules(documents: Documents) -> list[tuple[bool, str]]:
    tensors = documents.packet.tensors
    _, query_heads, _, width = tensors.queries.shape
    terms = 2 * query_heads * tensors.stored_keys.shape[2] * width
    return [
        (query_heads > MAX_QUERY_HEADS, f"more than {MAX_QUERY_HEADS} query heads"),
        (width > MAX_WIDTH, f"head dimension above {MAX_WIDTH}"),
        (terms > MAX_TERMS, f"more than {MAX_TERMS} multiply-add terms per reference"),
    ]


def admission_reasons(documents: Documents) -> tuple[str, ...]:
    """Why the selected step admits no reference; empty when it is complete and confirmed."""
    snapshot = documents.snapshot
    confirmed = (
        snapshot.forward_succeeded
        and snapshot.sample_outcome == "confirmed"
        and snapshot.selected_forwards == 1
        and not snapshot.refusals
        and snapshot.seed_token is not UNSET
        and snapshot.target_token is not UNSET
    )
    completed = documents.packet.capture.evaluation_status == "completed"
    rules = [(not confirmed, NOT_CONFIRMED), (not completed, NOT_COMPLETED)]
    return tuple(reason for broken, reason in rules if broken)
