"""Scoring: a candidate against a capture, over the frozen tokens of a suite, row by row.

What can be refused without a model is refused before one loads. Rows are kept on disk, so that a
run resumes and shards merge; the report is a function of the rows and of what bound them.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from jax import Array
from safetensors.numpy import load, save

from cke.errors.files import write_atomically
from cke.fidelity.capture import MANIFEST, live_fields
from cke.fidelity.capture_reader import Capture
from cke.fidelity.digests import token_sha256
from cke.fidelity.fields import mismatches
from cke.fidelity.head import blocks
from cke.fidelity.kld import block_scores, forward_kld
from cke.fidelity.laws import LAWS_VERSION
from cke.fidelity.refusal import refuse
from cke.fidelity.settings import PROCESS
from cke.fidelity.statistics import Row, mean, summary, worker_agreement
from cke.fidelity.subject import Subject
from cke.fidelity.suite import Context, pretty
from cke.fidelity.suite_reader import Suite
from cke.schemas.reading import read_json

Clock = Callable[[], str]
LoadSubject = Callable[[], Subject]
Progress = Callable[[str], None]
FACTS = "run.json"
REPORT = "report.json"
SCORED_MANIFEST = "capture-manifest.json"
WHEN = ("scored_at", "scored_by")
"""When a run began, and in which process; nothing else may differ between its parts."""
ARRAYS = ("kld", "reverse", "reference_top1", "agreeing")


def utc_now() -> str:
    """Return the time, with its zone."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class Shard(msgspec.Struct, frozen=True):
    """Part `index` of `count` of the rows; every row belongs to one part."""

    index: int = 0
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Return the part that `i/n` names; CKE873 for any other text."""
        index, _, count = text.partition("/")
        if not (index.isdigit() and count.isdigit() and int(index) < int(count)):
            refuse("CKE873", f"a shard expects `i/n` with i from 0 to n - 1, got `{text}`")
        return cls(int(index), int(count))

    def rows(self, total: int) -> list[int]:
        """Return the rows of this part."""
        return [row for row in range(total) if row % self.count == self.index]


def matching_contexts(capture: Capture, suite: Suite) -> tuple[Context, ...]:
    """Return the contexts that a capture holds; CKE872 when their tokens are not the suite's."""
    manifest = capture.manifest
    by_id = {item.context_id: item for item in suite.contexts}
    listed = manifest.get("contexts")
    names = listed if isinstance(listed, list) else []
    contexts = tuple(by_id[name] for name in names if name in by_id)
    problems = []
    if len(contexts) != len(names) or not names:
        problems.append("the capture holds contexts that the suite has not")
    derived = token_sha256(item.token_ids for item in contexts)
    if manifest.get("token_sha256") != derived:
        problems.append(
            f"token hash: the capture has `{manifest.get('token_sha256')}`, the suite `{derived}`"
        )
    recorded = manifest.get("token_suite", {})
    if recorded.get("token_sha256") != suite.token_sha256("all"):
        problems.append("the capture was taken over another suite")
    if recorded.get("suite_id") != suite.manifest.get("suite_id"):
        problems.append(
            f"suite: the capture has `{recorded.get('suite_id')}`, "
            f"this is `{suite.manifest.get('suite_id')}`"
        )
    if problems:
        refuse("CKE872", problems)
    return contexts


def score(
    capture: Capture,
    suite: Suite,
    load_subject: LoadSubject,
    out: Path,
    *,
    shard: Shard | None = None,
    clock: Clock = utc_now,
    freeze: dict[str, Any] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any] | None:
    """Score into the folder `out`; return the report, None for a shard of several.

    A qualification capture needs the freeze receipt of `freeze`.
    """
    part = shard or Shard()
    contexts = matching_contexts(capture, suite)
    if capture.manifest.get("partition") != "analysis":
        _check_freeze(freeze, clock())
    capture.verify()
    subject = load_subject()
    live = live_fields(subject, suite, contexts, capture.manifest["score_from"])
    if problems := mismatches(capture.manifest, live):
        refuse("CKE872", problems)
    _check_vocabulary(live["kld_vocab_size"], subject, capture)
    facts = run_facts(capture, suite, subject, live, freeze, clock)
    _begin(out, facts)
    write_atomically(out / SCORED_MANIFEST, (capture.folder / MANIFEST).read_bytes())
    for row in part.rows(len(contexts)):
        path = out / "rows" / f"row-{row:04d}.safetensors"
        if not path.is_file():
            write_atomically(path, save(score_row(capture, subject, row, contexts[row], live)))
        if progress is not None:
            progress(f"scored {row + 1} of {len(contexts)} contexts")
    if part.count > 1:
        return None
    return finish(out, contexts)


def _check_freeze(freeze: dict[str, Any] | None, now: str) -> None:
    from cke.fidelity.freeze import receipt_problems

    if problems := receipt_problems(freeze, None, now):
        refuse("CKE879", problems)


def _check_vocabulary(vocabulary: int, subject: Subject, capture: Capture) -> None:
    for side, declared in (
        ("candidate", subject.head.declared_vocab),
        ("reference", capture.manifest["declared_vocab_size"]),
    ):
        if vocabulary > declared:
            refuse("CKE872", f"the {side} declares {declared} tokens, the tokenizer {vocabulary}")


def run_facts(
    capture: Capture,
    suite: Suite,
    subject: Subject,
    live: dict[str, Any],
    freeze: dict[str, Any] | None,
    clock: Clock,
) -> dict[str, Any]:
    """Return what a report says beside its statistics."""
    manifest = capture.manifest
    head = subject.head.state
    return {
        "kind": "cke-fidelity-report",
        "laws_version": LAWS_VERSION,
        "suite_id": suite.manifest["suite_id"],
        "strata_declared": [item["key"] for item in suite.manifest["strata"]],
        **live,
        "declared_vocab_size": subject.head.declared_vocab,
        "partition": manifest["partition"],
        "bounded_prefix": manifest["bounded_prefix"],
        "scored_at": clock(),
        "scored_by": PROCESS,
        "freeze_receipt": freeze,
        "reference_model": manifest["reference_model"],
        "reference_config_sha256": manifest["reference_config_sha256"],
        "reference_weights_sha256": manifest["reference_weights_sha256"],
        "reference_routing": manifest["reference_routing"],
        "capture_manifest_sha256": capture.manifest_sha256,
        "storage": manifest["storage"],
        "student_model": subject.identity.name,
        "student_weights_sha256": subject.identity.weights_sha256,
        "student_config_sha256": subject.identity.config_sha256,
        "student_lm_head": head,
        "teacher_lm_head": manifest["lm_head"],
        "heads_identical": head == manifest["lm_head"],
        "inspection": subject.inspection,
        "quantization_substitutions": subject.inspection["substitutions"],
    }


def _begin(out: Path, facts: dict[str, Any]) -> None:
    """Bind the folder to these facts; a run that resumes keeps the time at which it began."""
    path = out / FACTS
    plain = msgspec.json.decode(msgspec.json.encode(facts))
    if path.is_file():
        found = read_json(path)
        timed = {**plain, **{name: found.get(name) for name in WHEN}}
        differing = sorted(key for key in timed if found.get(key) != timed[key])
        if differing:
            refuse("CKE872", [f"`{key}` differs from the run begun here" for key in differing])
        return
    write_atomically(path, pretty(plain))


def score_row(
    capture: Capture, subject: Subject, row: int, context: Context, live: dict[str, Any]
) -> dict[str, np.ndarray]:
    """Return the per-position arrays of one context, every one of them finite."""
    hidden = subject.hidden(np.array(context.token_ids, np.int32))
    return row_scores(capture, subject, row, hidden, live)


def row_scores(
    capture: Capture, subject: Subject, row: int, hidden: Array, live: dict[str, Any]
) -> dict[str, np.ndarray]:
    """Return the arrays of one context from the candidate's hidden states [T, D]."""
    start, vocabulary, mode = live["score_from"], live["kld_vocab_size"], subject.mode
    scored = hidden[start : hidden.shape[0] - 1]
    head = capture.head(mode)
    found: dict[str, list[np.ndarray]] = {name: [] for name in (*ARRAYS, "trunk_0", "top1_0")}
    reference = capture.logits(row, mode)
    for part, teacher in zip(blocks(scored.shape[0]), reference, strict=True):
        own = block_scores(teacher, subject.head.logits(scored[part]), vocabulary, mode)
        for name, values in zip(ARRAYS, own, strict=True):
            found[name].append(values)
        trunk = head.logits(scored[part])
        found["trunk_0"].append(forward_kld(teacher, trunk, vocabulary, mode))
        found["top1_0"].append(np.argmax(np.asarray(trunk)[:, :vocabulary], axis=-1))
    arrays = {name: np.concatenate(parts) for name, parts in found.items()}
    for name in ("kld", "reverse", "trunk_0"):
        if not np.isfinite(arrays[name]).all():
            at = int(np.argmax(~np.isfinite(arrays[name])))
            refuse("CKE875", f"`{name}` is not finite at row {row}, position {start + at}")
    return arrays


def read_rows(folder: Path, contexts: Sequence[Context]) -> list[Row]:
    """Return the scored rows of a run; CKE873 when one is missing."""
    rows = []
    for index, item in enumerate(contexts):
        path = folder / "rows" / f"row-{index:04d}.safetensors"
        if not path.is_file():
            refuse("CKE873", f"row {index} was not scored", file=folder.name)
        arrays = load(path.read_bytes())
        workers = sorted(name for name in arrays if name.startswith("trunk_"))
        rows.append(
            Row(
                row=index,
                context_id=item.context_id,
                stratum=item.stratum,
                cluster=item.source_cluster_id,
                **{name: arrays[name] for name in ARRAYS},
                trunk=tuple(arrays[name] for name in workers),
                trunk_top1=tuple(arrays[name.replace("trunk", "top1")] for name in workers),
            )
        )
    return rows


def finish(out: Path, contexts: Sequence[Context]) -> dict[str, Any]:
    """Write and return the report of a run whose rows are complete."""
    facts = read_json(out / FACTS)
    rows = read_rows(out, contexts)
    workers = range(len(rows[0].trunk))
    ranks = [np.concatenate([row.trunk[rank] for row in rows]) for rank in workers]
    tops = [np.concatenate([row.trunk_top1[rank] for row in rows]) for rank in workers]
    agreement, problems = worker_agreement(ranks, tops)
    if problems:
        refuse("CKE875", problems)
    numbers = summary(rows)
    trunk = mean(ranks[0])
    report = {
        **facts,
        **numbers,
        "trunk_mean_kld": trunk,
        "deployed_mean_kld": numbers["mean_kld"],
        "head_delta_kld": numbers["mean_kld"] - trunk,
        "trunk_worker_agreement": agreement,
        "unique_tokens": len({token for item in contexts for token in item.token_ids}),
    }
    write_atomically(out / REPORT, pretty(report))
    return report


def merge(shards: Sequence[Path], out: Path, contexts: Sequence[Context]) -> dict[str, Any]:
    """Return the report of runs that each scored some rows, as one run would have written it."""
    facts = [read_json(folder / FACTS) for folder in shards]
    first = min(facts, key=lambda item: str(item["scored_at"]))
    for folder, item in zip(shards, facts, strict=True):
        differing = sorted(key for key in first if key not in WHEN and item.get(key) != first[key])
        if differing:
            refuse(
                "CKE872", [f"`{key}` differs between shards" for key in differing], file=folder.name
            )
    write_atomically(out / FACTS, pretty(first))
    write_atomically(out / SCORED_MANIFEST, (shards[0] / SCORED_MANIFEST).read_bytes())
    for folder in shards:
        for path in sorted(folder.joinpath("rows").glob("row-*.safetensors")):
            target = out / "rows" / path.name
            content = path.read_bytes()
            if target.is_file() and target.read_bytes() != content:
                refuse("CKE875", f"two shards give different values for `{path.name}`")
            write_atomically(target, content)
    return finish(out, contexts)
