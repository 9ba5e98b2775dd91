"""The stages before numbers: binding, schedule, metadata. Records are joined; no tensor is opened.

Each check gives the first finding or nothing, and runs in the order of XRAY section 3. Facts of
the oracle are its own: nothing on its side is read from the subject (XRAY-8).
"""

from collections.abc import Iterator

from cke.oracles.points import ARCHITECTURES, family_names
from cke.runtime.records import RUN_TO_WIRE, split_id
from cke.runtime.trace_reader import given_inputs
from cke.schemas.manifest import Manifest
from cke.schemas.trace import Body, Record, Segment
from cke.xray.diff import layout_fault
from cke.xray.finding import Finding
from cke.xray.profile import profile_entry
from cke.xray.registry import registry_fault

SPECIAL = 3


def binding_fault(subject: Body, oracle: Body) -> Finding | None:
    """Return why the two are not the same tokens, model or a repeatable, neutral capture."""
    return next(_binding(subject, oracle), None)


def _binding(subject: Body, oracle: Body) -> Iterator[Finding]:
    if _all_tokens(subject) != _all_tokens(oracle):
        yield Finding(
            failure_class="INPUT_TOKEN_MISMATCH",
            because=(
                f"the subject ran {len(_all_tokens(subject))} tokens, the oracle "
                f"{len(_all_tokens(oracle))}: {_first_difference(subject, oracle)}",
            ),
        )
    mine, theirs = ({r.checkpoint_id: r.sha256 for r in given_inputs(s)} for s in (subject, oracle))
    for item in sorted(mine.keys() | theirs.keys()):
        if mine.get(item) != theirs.get(item):
            yield Finding(
                failure_class="INPUT_TOKEN_MISMATCH",
                because=(
                    f"`{item}` of the subject are {str(mine.get(item))[:12]}, those of the oracle "
                    f"{str(theirs.get(item))[:12]} (sha256)",
                ),
            )
    yield from _identity(subject, oracle)
    for name, side in (("subject", subject), ("oracle", oracle)):
        if side.neutrality.control_equal is False:
            yield Finding(
                failure_class="RUNTIME_NOT_REPEATABLE",
                because=(f"two runs of the {name} without captures differ in bits",),
            )
        if side.neutrality.status in ("rejected", "evidence_program"):
            yield Finding(
                failure_class="CAPTURE_NOT_NEUTRAL",
                because=(
                    f"capturing changed the {name}'s outputs ({side.neutrality.mode}): its tensors "
                    "are not evidence",
                ),
            )


def _flat(segment: Segment) -> list[list[int]]:
    return [
        [token for token, at in zip(row, positions, strict=True) if at >= 0]
        for row, positions in zip(segment.tokens, segment.positions, strict=True)
    ]


def _all_tokens(body: Body) -> list[list[int]]:
    rows = max((len(segment.tokens) for segment in body.segments), default=0)
    found: list[list[int]] = [[] for _ in range(rows)]
    for segment in body.segments:
        for row, tokens in zip(found, _flat(segment), strict=False):
            row.extend(tokens)
    return found


def _first_difference(subject: Body, oracle: Body) -> str:
    for row, (mine, theirs) in enumerate(
        zip(_all_tokens(subject), _all_tokens(oracle), strict=False)
    ):
        if mine != theirs:
            at = next(
                (i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b),
                min(len(mine), len(theirs)),
            )
            return (
                f"row {row} differs from token {at} on: {mine[at : at + SPECIAL]} and "
                f"{theirs[at : at + SPECIAL]}"
            )
    return "another number of rows"


def _identity(subject: Body, oracle: Body) -> Iterator[Finding]:
    """Yield weights that are known on both sides and differ; families have a name per format."""
    left, right = subject.identity.model_sha256, oracle.identity.model_sha256
    if left is not None and right is not None and left != right:
        yield Finding(
            failure_class="IDENTITY_MISMATCH",
            because=(
                f"the weights' sha256 is {_short(left)} on the subject and {_short(right)} there",
            ),
        )
    mine, theirs = subject.identity.family, oracle.identity.family
    if mine is not None and theirs is not None and not _same_family(mine, theirs):
        yield Finding(
            failure_class="IDENTITY_MISMATCH",
            because=(f"the subject is of family `{mine}`, the oracle of `{theirs}`",),
        )


def _same_family(left: str, right: str) -> bool:
    """Return whether two names, of a config or of a GGUF file, may be of one family."""
    known = {*family_names(), *ARCHITECTURES, *ARCHITECTURES.values()}
    if left not in known or right not in known:
        return True
    return ARCHITECTURES.get(left, left) == ARCHITECTURES.get(right, right)


def _short(text: str) -> str:
    return f"`{text[:12]}`"


def schedule_fault(subject: Body, oracle: Body) -> Finding | None:
    """Return the first difference of segmentation, then of positions, then of the cache."""
    return next(_schedule(subject.segments, oracle.segments), None) or _strides(subject, oracle)


def _schedule(subject: tuple[Segment, ...], oracle: tuple[Segment, ...]) -> Iterator[Finding]:
    def form(segments: tuple[Segment, ...]) -> list[tuple[str, int, str]]:
        return [(s.phase, len(s.tokens[0]), s.cache_action) for s in segments]

    if form(subject) != form(oracle):
        yield Finding(
            failure_class="EXECUTION_POLICY_MISMATCH",
            because=(
                f"the subject ran {_forwards(subject)}, the oracle {_forwards(oracle)}: these are "
                "different executions",
            ),
        )
    for mine, theirs in zip(subject, oracle, strict=False):
        if mine.positions != theirs.positions:
            yield Finding(
                failure_class="POSITION_STATE_MISMATCH",
                segment=mine.index,
                because=(_positions(mine, theirs),),
            )
    for mine, theirs in zip(subject, oracle, strict=False):
        for field in ("append_index", "cache_token_count"):
            left, right = getattr(mine, field), getattr(theirs, field)
            if left != right:
                yield Finding(
                    failure_class="CACHE_STATE_METADATA_MISMATCH",
                    segment=mine.index,
                    because=(
                        f"`{field}` of forward {mine.index} is {list(left)} on the subject and "
                        f"{list(right)} on the oracle",
                    ),
                )


def _forwards(segments: tuple[Segment, ...]) -> str:
    return " + ".join(f"{s.phase} {len(s.tokens[0])} ({s.cache_action})" for s in segments)


def _positions(mine: Segment, theirs: Segment) -> str:
    for row, (left, right) in enumerate(zip(mine.positions, theirs.positions, strict=False)):
        if left != right:
            return (
                f"row {row} of forward {mine.index} was fed positions {list(left[:8])} on the "
                f"subject and {list(right[:8])} on the oracle"
            )
    return f"forward {mine.index} has another number of rows"


def _strides(subject: Body, oracle: Body) -> Finding | None:
    mine, theirs = subject.cache_layout, oracle.cache_layout
    if mine is None or theirs is None or mine.layout_id != theirs.layout_id or mine == theirs:
        return None
    return Finding(
        failure_class="CACHE_STATE_METADATA_MISMATCH",
        because=(f"the caches of layout `{mine.layout_id}` have other strides",),
    )


def declared_fault(
    manifest: Manifest | None,
    subject_dtype: str,
    backend: str,
    oracle_dtype: str,
    oracle_weights: dict[str, int],
) -> Finding | None:
    """Return what declared metadata alone refuses, before either model runs (XRAY-36)."""
    if backend != "reference" and oracle_dtype != subject_dtype:
        return Finding(
            failure_class="DIAGNOSTIC_EXPORT_MAPPING",
            because=(
                f"the oracle runs in {oracle_dtype}, the subject in {subject_dtype}: load both in "
                "one dtype",
            ),
        )
    if profile_entry(backend, oracle_dtype) is None:
        return Finding(
            failure_class="MISSING_TOLERANCE_PROFILE",
            because=(f"`{backend}` at {oracle_dtype} has no entry in xray/profiles",),
        )
    named = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "float64": "f64"}
    floats = {named[name]: count for name, count in oracle_weights.items() if name in named}
    loaded = max(floats, key=lambda name: floats[name], default=oracle_dtype)
    if backend == "pytorch" and loaded != oracle_dtype:
        return Finding(
            failure_class="DIAGNOSTIC_EXPORT_MAPPING",
            because=(
                f"the oracle says {oracle_dtype}, and most of its loaded tensors are {loaded}",
            ),
        )
    return None if manifest is None else registry_fault(manifest)


def metadata_fault(
    manifest: Manifest | None, subject: Body, oracle: Body, wanted: frozenset[str] | None = None
) -> Finding | None:
    """Return the first checkpoint whose metadata cannot be joined; every record is looked at.

    Without a manifest the records alone are compared.
    """
    return next(_metadata(manifest, subject, oracle, wanted), None)


def _metadata(
    manifest: Manifest | None, subject: Body, oracle: Body, wanted: frozenset[str] | None
) -> Iterator[Finding]:
    checkpoints = () if manifest is None else manifest.checkpoints
    programs = () if manifest is None else manifest.calls.programs
    bound = {(item.checkpoint.name, item.checkpoint.role): item for item in checkpoints}
    contracts = {
        call.id + program.phase + function.name: call
        for program in programs
        for function in program.functions
        for call in function.calls
    }
    theirs = {(r.segment, r.checkpoint_id, r.role): r for r in oracle.records}
    pairs = [
        (record, theirs[key])
        for record in subject.records
        if (key := (record.segment, record.checkpoint_id, record.role)) in theirs
    ]
    for mine, other in pairs:
        if mine.version != other.version:
            yield _at(
                mine,
                "CHECKPOINT_VERSION_MISMATCH",
                f"version {mine.version} of the subject, {other.version} of the oracle",
            )
    yield from _missing(manifest, subject, oracle, wanted)
    for record in subject.records:
        binding = bound.get((_name(record), record.role))
        if binding is None or record.kernel_id is None:
            continue
        call = contracts.get(binding.call + binding.phase + binding.function)
        if record.kernel_id not in {
            item.kernel_id
            for item in checkpoints
            if (item.checkpoint.name, item.checkpoint.role) == (_name(record), record.role)
        }:
            yield _at(
                record,
                "KERNEL_BINDING_MISMATCH",
                f"the trace ran `{record.kernel_id}`, the manifest binds `{binding.kernel_id}`",
            )
        effective = record.effective_contract_id
        if call is not None and effective is not None:
            if record.numerical_contract_id != effective:
                yield _at(
                    record,
                    "NUMERICAL_CONTRACT_MISMATCH",
                    f"contract `{record.numerical_contract_id}` was resolved, `{effective}` ran",
                )
    entry = profile_entry(oracle.producer.name, oracle.producer.dtype)
    for mine, other in pairs:
        yield from _storage(mine, other, entry.storage if entry else None, subject, oracle)
    for mine, other in pairs:
        fault = layout_fault(mine, other)
        if fault is not None:
            logical = sorted(mine.axes) == sorted(other.axes)
            yield _at(
                mine,
                "LAYOUT_MISMATCH",
                f"no permutation of named axes reconciles them: {fault}",
                "circuit" if logical else "reference_adapter",
            )


def _storage(
    mine: Record, other: Record, usual: str | None, subject: Body, oracle: Body
) -> Iterator[Finding]:
    floats = ("fp32", "fp16", "bf16", "fp64")
    if mine.dtype not in floats or other.dtype not in floats:
        if mine.dtype != other.dtype:
            yield _at(
                mine,
                "DIAGNOSTIC_EXPORT_MAPPING",
                f"the subject has {mine.dtype} here, the oracle exports {other.dtype}",
            )
        return
    run = RUN_TO_WIRE[subject.producer.dtype]
    if usual == RUN_TO_WIRE[oracle.producer.dtype] == run and mine.dtype != other.dtype:
        if other.dtype == run:
            yield _at(
                mine,
                "STORAGE_CONTRACT_MISMATCH",
                f"the subject stores {mine.dtype} here, the oracle {other.dtype}",
                "circuit",
            )


def _missing(
    manifest: Manifest | None, subject: Body, oracle: Body, wanted: frozenset[str] | None
) -> Iterator[Finding]:
    checkpoints = () if manifest is None else manifest.checkpoints
    known = {item.checkpoint.name for item in checkpoints}
    live = manifest is not None and oracle.producer.name in ("pytorch", "llamacpp")
    for record in oracle.records:
        name = _name(record)
        if live and name not in known and not name.startswith("edge/"):
            yield _at(
                record,
                "CIRCUIT_PRODUCER_MISMATCH",
                f"the oracle computes `{name}`, and no op of the circuit makes it",
            )
    yield from _holes(subject, oracle)
    have = {_name(record) for record in oracle.records}
    for name in sorted(wanted or ()):
        if name in known and name not in have:
            shown = next((r for r in subject.records if _name(r) == name), None)
            yield Finding(
                failure_class="MISSING_CHECKPOINT",
                checkpoint_id=name if shown is None else shown.checkpoint_id,
                because=(f"the oracle does not export `{name}`",),
            )


def _holes(subject: Body, oracle: Body) -> Iterator[Finding]:
    """Yield checkpoints that the oracle exports in some layers, and leaves out in another."""
    theirs = {(r.segment, r.checkpoint_id) for r in oracle.records}
    exported = {(r.segment, _name(r)) for r in oracle.records if r.layer is not None}
    for record in subject.records:
        name = _name(record)
        if record.layer is None or name.startswith("edge/"):
            continue
        if (record.segment, name) in exported and (
            record.segment,
            record.checkpoint_id,
        ) not in theirs:
            yield _at(record, "MISSING_CHECKPOINT", "the oracle exports it in other layers only")


def _name(record: Record) -> str:
    return split_id(record.checkpoint_id)[0]


def _at(record: Record, name: str, text: str, owner: str | None = None) -> Finding:
    return Finding(
        failure_class=name,
        owner=owner,  # type: ignore[arg-type]
        checkpoint_id=record.checkpoint_id,
        role=record.role,
        segment=record.segment,
        kernel_id=record.kernel_id,
        because=(f"{record.checkpoint_id}: {text}",),
    )
