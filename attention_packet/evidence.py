"""What a packet may say to X-Ray: a measurement with its limitations, and never a decision."""

from cke.attention_packet.refusal import refuse
from cke.schemas.attention_packet import Analysis, PacketMeasurement


def read_measurement(analysis: Analysis) -> PacketMeasurement:
    """Return the measurement of an analysed packet; any other packet is no evidence."""
    original = analysis.original_query_reference
    rounded = analysis.reference_rounded_to_output_dtype
    if analysis.status != "analyzed":
        reasons = "; ".join(analysis.inconclusive_reasons)
        reason = analysis.refusal.message if analysis.refusal else reasons
        refuse(
            "CKE848",
            f"expected an analyzed packet as evidence, got one that is {analysis.status}: {reason}",
        )
    assert original is not None
    assert rounded is not None
    assert analysis.packet_sha256 is not None
    assert analysis.identity is not None
    assert analysis.selection is not None
    assert analysis.geometry is not None
    assert analysis.tensor_sha256 is not None
    return PacketMeasurement(
        packet_sha256=analysis.packet_sha256,
        identity=analysis.identity,
        model_layer_index=analysis.selection.model_layer_index,
        position=analysis.selection.offset_before,
        dtype=rounded.dtype,
        reduction_length=analysis.geometry.tokens,
        tensor_sha256=analysis.tensor_sha256,
        comparison=original.comparison,
        rounded_comparison=rounded.comparison,
        limitations=analysis.limitations,
    )
