"""Capture: the reference's distributions over a suite, written row by row, and its manifest.

A capture resumes where it stopped, under the same bound fields only. `hidden` storage is proven on
every row: what was written, read back and put through the stored head, gives the live bits.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import msgspec
import numpy as np
from jax import Array
from safetensors.numpy import load, save

from cke.errors.files import write_atomically
from cke.fidelity.digests import arrays_sha256, file_sha256
from cke.fidelity.head import Head, blocks
from cke.fidelity.laws import LAWS_VERSION
from cke.fidelity.refusal import refuse
from cke.fidelity.settings import BLOCK, PROCESS
from cke.fidelity.subject import Subject
from cke.fidelity.suite import Context, pretty
from cke.fidelity.suite_reader import Selection, Suite
from cke.schemas.reading import read_json

Storage = Literal["hidden", "logits"]
Progress = Callable[[str], None]
MANIFEST = "manifest.json"
BEGUN = "begun.json"
HEAD = "head.safetensors"
PACKAGE = "package"


class CaptureRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to capture: a partition of a suite from a position on, as hidden states or logits."""

    partition: Selection = "analysis"
    score_from: int = 0
    storage: Storage = "hidden"
    limit: int | None = None


def live_fields(
    subject: Subject, suite: Suite, contexts: Sequence[Context], score_from: int
) -> dict[str, Any]:
    """Return the bound fields as this process would have them: the right side of Law 5."""
    from cke.fidelity.digests import token_sha256

    settings = subject.settings
    length = suite.manifest["context_length"]
    if not 0 <= score_from <= length - 2:
        refuse("CKE872", f"`score_from` expects 0 to {length - 2}, got {score_from}")
    return {
        "tokenizer": suite.manifest["tokenizer"],
        "token_sha256": token_sha256(item.token_ids for item in contexts),
        "context_length": length,
        "stride": length,
        "rows": len(contexts),
        "score_from": score_from,
        "kld_vocab_size": suite.manifest["tokenizer"]["unpadded_vocab_size"],
        **msgspec.to_builtins(settings),
        "runtime": subject.runtime,
    }


def chosen_contexts(suite: Suite, request: CaptureRequest) -> tuple[Context, ...]:
    """Return the contexts of a request; a bounded prefix takes the strata in turn."""
    contexts = suite.selected(request.partition)
    if request.limit is None or request.limit >= len(contexts):
        return contexts
    seen: dict[str, int] = {}
    ranked = []
    for item in contexts:
        seen[item.stratum] = seen.get(item.stratum, 0) + 1
        ranked.append((seen[item.stratum], item.context_id, item))
    kept = sorted(ranked)[: request.limit]
    return tuple(sorted((item for *_, item in kept), key=lambda item: item.context_id))


def capture(
    reference: Subject,
    suite: Suite,
    request: CaptureRequest,
    out: Path,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write the capture to `out`, or go on with the one begun there; return its manifest."""
    contexts = chosen_contexts(suite, request)
    bound = live_fields(reference, suite, contexts, request.score_from)
    _begin(out, {**bound, "storage": request.storage, "reference": _who(reference)})
    _write_head(reference, out)
    probe = Probe(out, reference)
    for row, context in enumerate(contexts):
        path = out / "rows" / f"row-{row:04d}.safetensors"
        if not path.is_file() or not probe.read(row):
            arrays, live = row_arrays(reference, context, request)
            write_atomically(path, save(arrays))
            probe.record(row, live)
        if request.storage == "hidden":
            probe.replay(row, path)
        if progress is not None:
            progress(f"captured {row + 1} of {len(contexts)} contexts")
    manifest = _manifest(reference, suite, request, contexts, bound, probe, out)
    write_atomically(out / MANIFEST, pretty(manifest))
    return manifest


def _who(reference: Subject) -> dict[str, Any]:
    return {
        "reference_model": reference.identity.name,
        "reference_config_sha256": reference.identity.config_sha256,
        "reference_weights_sha256": reference.identity.weights_sha256,
    }


def _begin(out: Path, facts: dict[str, Any]) -> None:
    """Bind the folder to these facts before the first row; other facts need another folder."""
    if (out / MANIFEST).is_file():
        refuse("CKE872", "expected a new folder, got a finished capture", file=out.name)
    path = out / BEGUN
    plain = msgspec.json.decode(msgspec.json.encode(facts))
    if path.is_file():
        found = read_json(path)
        differing = sorted(name for name in plain if found.get(name) != plain[name])
        if differing:
            refuse(
                "CKE872",
                [
                    f"`{name}`: begun with `{found.get(name)}`, now `{plain[name]}`"
                    for name in differing
                ],
                file=out.name,
            )
        return
    write_atomically(path, pretty(plain))


def _write_head(reference: Subject, out: Path) -> None:
    arrays = {name: np.asarray(array) for name, array in reference.head.arrays().items()}
    write_atomically(out / HEAD, save(arrays))
    folder = reference.package.folder
    assert folder is not None, "a package that captures is on disk"
    for path in sorted(folder.glob("*")):
        if path.is_file():
            write_atomically(out / PACKAGE / path.name, path.read_bytes())


def row_arrays(
    reference: Subject, context: Context, request: CaptureRequest
) -> tuple[dict[str, np.ndarray], str]:
    """Return what a row stores, and the digest of its live logits."""
    last = len(context.token_ids) - 1
    hidden = reference.hidden(np.array(context.token_ids, np.int32))[request.score_from : last]
    if request.storage == "hidden":
        return {"hidden": np.asarray(hidden)}, logits_sha256(reference.head, hidden)
    logits = np.concatenate(
        [np.asarray(reference.head.logits(hidden[part])) for part in blocks(len(hidden))]
    )
    return {"logits": logits}, arrays_sha256({"logits": logits})


def logits_sha256(head: Head, hidden: Array) -> str:
    """Return the digest of a row's logits, made block by block."""
    parts = {
        f"{part.start:08d}": np.asarray(head.logits(hidden[part])) for part in blocks(len(hidden))
    }
    return arrays_sha256(parts)


class Probe:
    """The replay probe: live digests of rows as they were made, compared with replayed ones."""

    def __init__(self, out: Path, reference: Subject) -> None:
        self.out = out
        self.positions = 0
        self.differing: list[int] = []
        self.vocab = reference.head.declared_vocab
        self._live: dict[int, str] = {}
        self._stored = Head(reference.package, stored_weights(out / HEAD), reference.mode)

    def read(self, row: int) -> bool:
        """Whether a row's live digest was recorded by the run that made it."""
        path = self._path(row)
        if path.is_file():
            self._live[row] = str(read_json(path)["logits_sha256"])
        return path.is_file()

    def record(self, row: int, live: str) -> None:
        """Keep the digest of the logits as the model gave them."""
        self._live[row] = live
        write_atomically(self._path(row), pretty({"logits_sha256": live}))

    def replay(self, row: int, path: Path) -> None:
        """Put the row as it is on disk through the stored head, and compare bits."""
        hidden = jax.device_put(load(path.read_bytes())["hidden"])
        self.positions += len(hidden)
        if logits_sha256(self._stored, hidden) != self._live[row]:
            self.differing.append(row)

    def result(self, rows: dict[str, str]) -> dict[str, Any]:
        """Return the probe as the manifest holds it, bound to these very files."""
        return {
            "identical": not self.differing,
            "max_abs": 0.0 if not self.differing else None,
            "num_differing": len(self.differing),
            "positions": self.positions,
            "vocab": self.vocab,
            "capture_sha256": capture_digest(rows),
        }

    def _path(self, row: int) -> Path:
        return self.out / "live" / f"row-{row:04d}.json"


def stored_weights(path: Path) -> dict[str, dict[str, Array]]:
    """Return the weights of a stored head, by step and parameter."""
    found: dict[str, dict[str, Array]] = {}
    for name, array in load(path.read_bytes()).items():
        step, _, parameter = name.partition("/")
        found.setdefault(step, {})[parameter] = jax.device_put(array)
    return found


def capture_digest(file_hashes: dict[str, str]) -> str:
    """Return what a probe is bound to: the names and hashes of the rows and the head."""
    from cke.schemas.reading import canonical_sha256

    kept = {name: value for name, value in file_hashes.items() if not name.startswith("live/")}
    return canonical_sha256(kept)


def _manifest(
    reference: Subject,
    suite: Suite,
    request: CaptureRequest,
    contexts: Sequence[Context],
    bound: dict[str, Any],
    probe: Probe,
    out: Path,
) -> dict[str, Any]:
    hashes = {
        path.relative_to(out).as_posix(): file_sha256(path)
        for path in sorted(out.rglob("*"))
        if path.is_file() and path.name not in (MANIFEST, BEGUN)
    }
    result = probe.result(hashes) if request.storage == "hidden" else None
    if result is not None and (problems := probe_problems(request.storage, result, hashes)):
        refuse("CKE874", problems, file=out.name)
    return {
        "kind": "cke-fidelity-capture",
        "laws_version": LAWS_VERSION,
        **bound,
        "declared_vocab_size": reference.head.declared_vocab,
        "partition": request.partition,
        "bounded_prefix": len(contexts) < len(suite.selected(request.partition)),
        "contexts": [item.context_id for item in contexts],
        "token_suite": {
            "suite_id": suite.manifest["suite_id"],
            "token_sha256": suite.manifest["token_sha256"],
        },
        **_who(reference),
        "captured_by": PROCESS,
        "reference_routing": reference.identity.routing,
        "lm_head": reference.head.state,
        "hidden_point": reference.head.cut.edge,
        "storage": request.storage,
        "file_hashes": hashes,
        "replay_probe": result,
    }


def probe_problems(storage: Any, probe: Any, file_hashes: dict[str, str]) -> list[str]:
    """Return why stored distributions may not stand for live ones; Law 7, at both ends."""
    if storage == "logits":
        return []
    if storage != "hidden":
        return [f"`storage` expects hidden or logits, got `{storage}`"]
    if not isinstance(probe, dict):
        return ["hidden storage has no replay probe"]
    problems = []
    if probe.get("identical") is not True:
        problems.append("the replay probe is not bitwise identical")
    if probe.get("num_differing") != 0 or probe.get("max_abs") != 0.0:
        problems.append(
            f"the replay probe differs: {probe.get('num_differing')} rows, "
            f"at most {probe.get('max_abs')}"
        )
    positions = probe.get("positions")
    if not isinstance(positions, int) or positions < 1:
        problems.append(f"the replay probe covers {positions} positions")
    if probe.get("capture_sha256") != capture_digest(file_hashes):
        problems.append("the replay probe is of another capture")
    return problems


assert BLOCK > 1, "a block of one position would take another kernel"
