"""Export an attention packet from a running model: one decode step of one layer.

Q, K and V are the arguments of the layer's own calls, as a second package captures them; keys and
values of the history are gathered from the state after the step. The step counts as confirmed when
the production program, run on the same tokens, gives the same tokens and the same logits' bits.
"""

import hashlib
import platform
import sys
from pathlib import Path
from typing import Any

import jax
import msgspec
import numpy as np

import cke
from cke.api.attention_calls import AttentionCalls, attention_calls
from cke.api.model import Model, load
from cke.attention_packet.export_documents import StepFacts
from cke.attention_packet.exporter import (
    Exported,
    check_layer,
    export_packet,
    hash_file,
    write_run_evidence,
)
from cke.attention_packet.mirror_writer import MirrorRows, write_mirror
from cke.attention_packet.refusal import refuse
from cke.runtime.buckets import SEGMENT
from cke.runtime.package import MANIFEST
from cke.runtime.session import Session
from cke.schemas.attention_packet import ObservedTensor, RunEvidence

Host = np.ndarray[Any, Any]
LAYOUT = "contiguous"


class ExportRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which step of which layer: `step` counts the decode steps after the prompt, from 0.

    `forced` are the tokens of the first decode steps; after them the largest logit decides.
    """

    tokens: tuple[int, ...]
    layer: int
    step: int = 0
    forced: tuple[int, ...] = ()
    circuit: str | Path | None = None
    dtype: str = "float32"


class _Run(msgspec.Struct, frozen=True):
    """What one program gave: the tokens fed and chosen, the last logits, incoming rows."""

    fed: tuple[int, ...]
    target: int
    logits: Host
    rows: tuple[dict[str, Host], ...] = ()


def export_attention_packet(
    path: str | Path, request: ExportRequest, out: Path, mirror: Path | None = None
) -> Exported:
    """Run the model at `path` and write the packet to the new folder `out`.

    Run evidence goes beside it, to `<out>-run.json`. With `mirror`, the rows of every forward, as
    the layer's append was given them, go to that new folder.
    """
    production = load(path, request.circuit, request.dtype)
    calls = attention_calls(production.manifest, request.layer)
    _check_request(request, production, calls, out)
    evidence = load(path, request.circuit, request.dtype, capture=calls.captures)
    return export_step(production, evidence, calls, request, out, mirror)


def export_step(
    production: Model,
    evidence: Model,
    calls: AttentionCalls,
    request: ExportRequest,
    out: Path,
    mirror: Path | None = None,
) -> Exported:
    """Run both programs, and write the packet when they agree bit by bit."""
    control = _run(production.session(), request)
    session = evidence.session()
    seen = _run(session, request, calls)
    confirmed = _same(control, seen)
    slot = {
        name: np.asarray(lane)[0] for name, lane in session.state[calls.step][calls.slot].items()
    }
    order, refusals = _history(slot["positions"], len(request.tokens) + request.step)
    arrays = _arrays(seen.rows[-1], slot, order, calls)
    facts = _facts(evidence, calls, request, seen, confirmed, refusals, slot)
    found = export_packet(arrays, facts, out)
    if found.packet_sha256 is not None:
        write_run_evidence(
            out.with_name(f"{out.name}-run.json"), _evidence(evidence, request, found), out
        )
        if mirror is not None:
            write_mirror(mirror, _mirror_rows(seen), facts)
    return found


def _check_request(request: ExportRequest, model: Model, calls: AttentionCalls, out: Path) -> None:
    if not request.tokens or request.step < 0:
        refuse("CKE847", "expected at least one token and a step from 0 on")
    if len(request.forced) > request.step + 1:
        refuse(
            "CKE847",
            f"expected at most {request.step + 1} forced tokens for step {request.step}, "
            f"got {len(request.forced)}",
        )
    if out.exists() or out.is_symlink():
        refuse("CKE847", "expected a folder that does not exist yet", file=str(out))
    check_exportable(calls)
    wanted = len(request.tokens) + request.step + 1
    if model.context is not None and wanted > model.context:
        refuse("CKE847", f"expected at most {model.context} positions, got {wanted}")


def _run(session: Session, request: ExportRequest, calls: AttentionCalls | None = None) -> _Run:
    rows: list[dict[str, Host]] = []

    def keep(width: int) -> None:
        if calls is not None:
            rows.append(
                {
                    name: np.asarray(session.captured[key])[0, :width]
                    for name, key in calls.keys.items()
                }
            )

    for start in range(0, len(request.tokens), SEGMENT):
        part = request.tokens[start : start + SEGMENT]
        session.prefill([part])
        keep(len(part))
    fed: list[int] = []
    for index in range(request.step + 1):
        forced = request.forced[index : index + 1]
        fed.append(forced[0] if forced else _greedy(session))
        session.decode([fed[-1]])
        keep(1)
    return _Run(tuple(fed), _greedy(session), _logits(session), tuple(rows))


def _logits(session: Session) -> Host:
    assert session.last_logits is not None
    logits: Host = np.asarray(session.last_logits)[0]
    return logits


def _greedy(session: Session) -> int:
    return int(np.argmax(_logits(session).astype(np.float32)))


def _same(control: _Run, seen: _Run) -> bool:
    """Whether both programs chose the same tokens and gave the same bits."""
    same_tokens = (control.fed, control.target) == (seen.fed, seen.target)
    return same_tokens and control.logits.tobytes() == seen.logits.tobytes()


def _history(positions: Host, last: int) -> tuple[Host, dict[str, int]]:
    """The cache rows in the order of their tokens, and a refusal when they are not 0 … last."""
    order = np.argsort(positions, kind="stable")
    order = order[positions[order] >= 0]
    complete = np.array_equal(positions[order], np.arange(last + 1))
    return order, {} if complete else {"unexpected_post_update_offset": 1}


def _arrays(
    row: dict[str, Host], slot: dict[str, Host], order: Host, calls: AttentionCalls
) -> dict[str, Host]:
    """Arrays [head, token, width]; incoming rows are those of the call, not of the cache."""
    key_lane, value_lane = calls.lanes
    found = {
        "queries": row["queries"],
        "incomingKeys": row["keys"],
        "incomingValues": row["values"],
        "output": row["output"],
        "storedKeys": slot[key_lane][order],
        "storedValues": slot[value_lane][order],
    }
    return {name: np.ascontiguousarray(array.swapaxes(0, 1)) for name, array in found.items()}


def check_exportable(calls: AttentionCalls) -> None:
    """Refuse a layer that the packet format does not hold."""
    check_layer(_layer_facts(calls))


def _layer_facts(calls: AttentionCalls) -> StepFacts:
    """The facts that are known before anything runs."""
    return StepFacts(
        model_id="",
        artifact_sha256="",
        input_sha256="",
        backend="contiguous",
        dispatch="contiguous_sdpa",
        phase="decode",
        request_id=1,
        output_index=1,
        batch_size=1,
        input_width=1,
        storage_layer_index=calls.storage_index,
        model_layer_index=calls.layer,
        offset_before=0,
        scale=calls.scale,
        kernel_output_dtype="",
        window=calls.window,
        softcap=calls.softcap,
        sinks=calls.sinks,
        spans=False,
        bidirectional=calls.bidirectional,
        shares_kv=calls.shares_kv,
        mtp=False,
        storage={},
        strides={},
        selected_forwards=1,
        forward_succeeded=False,
        sample_outcome="not_selected",
        seed_token=None,
        target_token=None,
        refusals={},
        evaluation_status="not_evaluated",
    )


def _facts(
    model: Model,
    calls: AttentionCalls,
    request: ExportRequest,
    seen: _Run,
    confirmed: bool,
    refusals: dict[str, int],
    slot: dict[str, Host],
) -> StepFacts:
    row = seen.rows[-1]
    lanes = {f"{calls.step}.{calls.slot}.{name}": slot[name] for name in calls.lanes}
    return msgspec.structs.replace(
        _layer_facts(calls),
        model_id=model.name,
        artifact_sha256=weights_sha256(model),
        input_sha256=_input_sha256(request),
        output_index=request.step + 1,
        offset_before=len(request.tokens) + request.step,
        kernel_output_dtype=row["output"].dtype.name,
        storage={name: _observed(lane) for name, lane in lanes.items()},
        strides={
            wire: _call_strides(row[name])
            for wire, name in (
                ("queries", "queries"),
                ("incomingKeys", "keys"),
                ("incomingValues", "values"),
                ("output", "output"),
            )
        },
        forward_succeeded=bool(np.isfinite(seen.logits.astype(np.float32)).all()),
        sample_outcome="confirmed" if confirmed else "retired_unconfirmed",
        seed_token=seen.fed[-1],
        target_token=seen.target,
        refusals=refusals,
        evaluation_status="completed",
    )


def _observed(lane: Host) -> ObservedTensor:
    """A lane of one sequence, [S, K, E], as the graph holds it: [1, S, K, E]."""
    tokens, heads, width = lane.shape
    return ObservedTensor(
        dtype=msgspec.convert(lane.dtype.name, Any),
        shape=(1, tokens, heads, width),
        graph_construction_strides=(tokens * heads * width, heads * width, width, 1),
    )


def _call_strides(row: Host) -> tuple[int, ...]:
    """Strides of [1, head, token, width] in the graph's layout [1, token, head, width]."""
    tokens, heads, width = row.shape
    return (tokens * heads * width, width, heads * width, 1)


def _mirror_rows(seen: _Run) -> MirrorRows:
    keys = np.concatenate([row["keys"] for row in seen.rows])
    values = np.concatenate([row["values"] for row in seen.rows])
    return MirrorRows(keys.swapaxes(0, 1), values.swapaxes(0, 1))


def weights_sha256(model: Model) -> str:
    """The aggregate hash of the decode program's weights as they were loaded."""
    digest = hashlib.sha256()
    for step, weights in sorted(model.weights["decode"].items()):
        for name, array in sorted(weights.items()):
            host = np.asarray(array)
            digest.update(f"{step} {name} {host.dtype.name} {host.shape}\n".encode())
            digest.update(host.tobytes())
    return digest.hexdigest()


def _input_sha256(request: ExportRequest) -> str:
    """The hash of the prompt's tokens as i32; forced tokens follow after a -1."""
    tokens = (*request.tokens, -1, *request.forced) if request.forced else request.tokens
    return hashlib.sha256(np.asarray(tokens, "<i4").tobytes()).hexdigest()


def _evidence(model: Model, request: ExportRequest, found: Exported) -> RunEvidence:
    assert found.packet_sha256 is not None
    assert model.package.folder is not None
    return RunEvidence(
        probe_executable=Path(sys.executable).name,
        probe_sha256=hash_file(Path(sys.executable).resolve()),
        packet_sha256=found.packet_sha256,
        cache_layout=LAYOUT,
        command=_command(model, request),
        runtime={
            "cke": cke.__version__,
            "jax": jax.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
            "driver": model.driver().name,
            "package manifest sha256": hash_file(model.package.folder / MANIFEST),
        },
    )


def _command(model: Model, request: ExportRequest) -> tuple[str, ...]:
    tokens = " ".join(map(str, request.tokens))
    options = {"--tokens": tokens, "--layer": request.layer, "--step": request.step}
    if request.forced:
        options["--forced"] = " ".join(map(str, request.forced))
    flags = [str(item) for pair in options.items() for item in pair]
    return ("cke", "packet", "export", "--model", model.name, "--dtype", request.dtype, *flags)
