"""X-Ray and attention packets: which packet is taken as evidence, and which command writes one."""

import shlex
from pathlib import Path

from cke.api.attention_calls import attention_calls
from cke.api.model import Model
from cke.api.packet import check_exportable, weights_sha256
from cke.attention_packet.analyze import analyze
from cke.attention_packet.evidence import read_measurement
from cke.attention_packet.refusal import refuse
from cke.errors import CkeError
from cke.runtime.schedule import CaptureRequest, plan_segments
from cke.schemas.attention_packet import PacketMeasurement
from cke.schemas.diagnosis import Diagnosis, Divergence
from cke.schemas.manifest import Manifest
from cke.xray.graph import ProgramGraph


def admit_packet(packet_json: Path) -> PacketMeasurement:
    """Return the measurement of an analyzed packet; any other packet is refused."""
    return read_measurement(analyze(packet_json).analysis)


def check_weights(packet: PacketMeasurement, model: Model) -> None:
    """Refuse a packet that was exported from other weights than those loaded."""
    loaded = weights_sha256(model)
    if packet.identity.artifact_sha256 != loaded:
        refuse(
            "CKE848",
            f"expected a packet of the loaded weights, {loaded[:12]}, "
            f"got one of {packet.identity.artifact_sha256[:12]}",
        )


def export_command(
    report: Diagnosis,
    manifest: Manifest,
    request: CaptureRequest,
    flags: dict[str, str | None],
    out: Path,
) -> str | None:
    """Return the command that writes a packet of the first divergent edge's attention.

    The packet is of the decode step of that forward, with the same tokens; of the step after it
    when the forward is a prefill. None when the edge is not of an attention, or of one that a
    packet does not hold. `flags` are --model, --circuit and --dtype.
    """
    found = report.first_divergence
    if found is None or found.layer is None or found.segment is None or request.first_position:
        return None
    if not _is_attention(manifest, found):
        return None
    try:
        check_exportable(attention_calls(manifest, found.layer))
    except CkeError:
        return None
    prompt, step, forced = _tokens(request, found.segment, _row(found))
    words = [
        *(f"--{name} {shlex.quote(value)}" for name, value in flags.items() if value is not None),
        f"--tokens {shlex.quote(' '.join(map(str, prompt)))}",
        f"--layer {found.layer} --step {step}",
        *([f"--forced {shlex.quote(' '.join(map(str, forced)))}"] if forced else []),
        f"--out {shlex.quote(str(out / 'packet'))}",
    ]
    return " ".join(["cke packet export", *words])


def _is_attention(manifest: Manifest, found: Divergence) -> bool:
    if found.operator is not None:
        return found.operator == "sdpa"
    graph = ProgramGraph(manifest, found.phase or "decode")
    site = graph.site_of(str(found.checkpoint_id), found.role)
    op = None if site is None else graph.producer(site)
    return op is not None and op.operator == "sdpa"


def _row(found: Divergence) -> int:
    worst = None if found.metrics is None else found.metrics.worst
    return 0 if worst is None else worst.coordinate.get("B", 0)


def _tokens(
    request: CaptureRequest, segment: int, row: int
) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    """Return the prompt, the decode step and the forced tokens of a forward's packet."""
    planned = plan_segments(request)
    seen = tuple(
        token
        for item in planned[: segment + 1]
        if item.phase == "prefill"
        for token, position in zip(item.tokens[row], item.positions[row], strict=True)
        if position >= 0
    )
    steps = sum(item.phase == "decode" for item in planned[: segment + 1])
    forced = tuple(step[row] for step in request.forced)
    if steps:
        return seen, steps - 1, forced[:steps]
    after = (*request.tokens[row], *forced)[len(seen) : len(seen) + 1]
    return seen, 0, after
