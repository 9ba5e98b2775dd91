"""Subjects of fidelity from model folders and GGUF files, each inspected while it loads."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cke.api.model import Model, load
from cke.fidelity.campaign import Tools
from cke.fidelity.candidates import (
    DESCRIPTION,
    SHARD,
    Description,
    FusedScale,
    Recorder,
    linear_weights,
    load_candidate,
    write_candidate,
)
from cke.fidelity.digests import weights_sha256
from cke.fidelity.head import PHASE, blocks
from cke.fidelity.integer_activations import Activations, with_integer_activations
from cke.fidelity.plan import CandidatePlan
from cke.fidelity.refusal import refuse
from cke.fidelity.routing import geometry
from cke.fidelity.settings import Mode
from cke.fidelity.subject import Identity, Subject
from cke.fidelity.suite import (
    SuiteRequest,
    TokenizerIdentity,
    build_suite,
    builtin_texts,
    read_texts,
)
from cke.runtime.placement import place_weights
from cke.runtime.weights.files import ModelFiles
from cke.runtime.weights.load import Weights
from cke.schemas.reading import canonical_sha256


def open_subject(
    path: Path,
    mode: Mode = "eager",
    *,
    dtype: str = "float32",
    circuit: str | None = None,
    fused_scale: FusedScale = "own",
    activations: Activations = "float",
) -> Subject:
    """Return the model at `path`, a folder, a GGUF file, or a folder that `quantise` wrote.

    `activations` is `q8_0` for linear layers that multiply integers, as llama.cpp does.
    """
    if path.joinpath(DESCRIPTION).is_file():
        found = load_candidate(path, mode, fused_scale=fused_scale)
    else:
        found = subject_of(load(path, circuit, dtype), mode)
    return with_integer_activations(found) if activations == "q8_0" else found


def subject_of(model: Model, mode: Mode = "eager") -> Subject:
    """Return a loaded model as a subject; its weights are read here, digested and recorded."""
    shards = sorted({tensor.file for tensor in model.files.located.values()})
    digest = weights_sha256(shards)
    program = model.package.program(PHASE)
    recorder = Recorder(linear_weights(program, head=True))
    stored = Recorded(model, recorder)
    placed = place_weights([program], stored.read, stored.weights.canonical, stored.joined)
    if weights_sha256(shards) != digest:
        refuse("CKE878", "the weights changed while they were read", file=model.name)
    routing = geometry(model.package)
    identity = Identity(
        name=model.name,
        weights_sha256=digest,
        config_sha256=config_sha256(model.files),
        routing=routing,
    )
    inspection = recorder.inspection(digest, routing is not None)
    return Subject(model.package, placed[PHASE], identity, inspection, mode)


class Recorded:
    """A model's weights that record how each was stored as it is read."""

    def __init__(self, model: Model, recorder: Recorder) -> None:
        self.weights = Weights(model.files, model.manifest.bindings)
        self._files = model.files
        self._recorder = recorder

    def read(self, name: str) -> Any:
        """Return a weight from its file's own parameters."""
        self._record(name)
        return self.weights[name]

    def joined(self, names: Sequence[str], axis: int) -> np.ndarray:
        """Return weights joined, each from its own parameters."""
        for name in names:
            self._record(name)
        return self.weights.fused(names, axis)

    def _record(self, name: str) -> None:
        binding = self.weights.bindings[self.weights.canonical(name)]
        kinds = sorted({self._files.located[key].info.storage for key in binding.sources})
        quantised = [kind for kind in kinds if kind not in ("F64", "F32", "F16", "BF16")]
        self._recorder.used(name, ",".join(quantised) or None, ["blocks"] if quantised else kinds)


def config_sha256(files: ModelFiles) -> str:
    """Return the digest of a model's config; a GGUF file's long arrays are among its weights."""
    plain = {
        key: value
        for key, value in files.config.items()
        if isinstance(value, str | int | float | bool | list | dict | None)
    }
    return canonical_sha256({key: str(value) for key, value in plain.items()})


def tokenizer_identity(model: Model) -> TokenizerIdentity:
    """Return which tokenizer a model has; `vocab_size` is the rows of its head."""
    tokenizer = model.tokenizer
    inner = tokenizer.inner
    return TokenizerIdentity(
        name=model.name,
        kind=type(inner.model).__name__,
        vocab_size=model.package.calls.dims["V"],
        unpadded_vocab_size=tokenizer.size,
        vocab_sha256=canonical_sha256(inner.get_vocab(with_added_tokens=True)),
        special_tokens={"bos": tokenizer.bos, "eos": sorted(tokenizer.eos)},
    )


def quantise(model: Model, format: str, out: Path, *, head: bool = False) -> Description:
    """Write a weight-only candidate of a model to the new folder `out`."""
    stored = Weights(model.files, model.manifest.bindings)
    shards = {tensor.file for tensor in model.files.located.values()}
    identity = Identity(
        name=model.name,
        weights_sha256=weights_sha256(shards),
        config_sha256=config_sha256(model.files),
        routing=geometry(model.package),
    )
    return write_candidate(
        model.package, stored.__getitem__, stored.canonical, identity, format, out, head=head
    )


def quantise_to(path: Path, planned: CandidatePlan, out: Path) -> Path:
    """Write a format of the model at `path` to the new folder `out`; return what to open.

    llama.cpp's quantiser writes the K formats, as a GGUF file in the folder.
    """
    from cke.oracles.gguf_quantise import K_FORMATS, quantise_gguf

    assert planned.format is not None, "a candidate that is made has a format"
    if planned.format in K_FORMATS:
        return quantise_gguf(path, planned.format, out / f"{out.name}.gguf")
    quantise(load(path), planned.format, out, head=planned.head)
    return out


def freeze_suite(path: Path, request: SuiteRequest, out: Path, texts: Path | None = None) -> str:
    """Write a suite with the tokenizer of the model at `path`, and return the suite's id.

    `texts` is a folder of texts, the shipped ones when it is None.
    """
    from cke.fidelity.score import utc_now

    model = load(path)
    manifest = build_suite(
        builtin_texts() if texts is None else read_texts(texts),
        lambda text: model.tokenizer.encode(text, special=False),
        tokenizer_identity(model),
        request,
        out,
        created_utc=utc_now(),
    )
    return str(manifest["suite_id"])


def weights_digest(path: Path) -> str:
    """Return the digest of the weights at `path` as they are on disk now."""
    if path.joinpath(DESCRIPTION).is_file():
        return weights_sha256([path / SHARD])
    return weights_sha256({tensor.file for tensor in load(path).files.located.values()})


def campaign_tools() -> Tools:
    """Return what a campaign does with models, by the functions of this module."""
    return Tools(
        open=lambda path, planned: open_subject(
            path, fused_scale=planned.fused_scale, activations=planned.activations
        ),
        make=quantise_to,
        freeze=freeze_suite,
        digest=weights_digest,
    )


def logits_of(path: Path, *, bos: bool) -> tuple[Callable[[np.ndarray], np.ndarray], int | None]:
    """Return a model's logits f32[T, V] of i32[T], compiled; with `bos`, also its first token."""
    subject = open_subject(path, "compiled")
    first = load(path).tokenizer.bos if bos else None
    if bos and first is None:
        refuse("CKE872", "the model has no token that begins a text", file=path.name)

    def logits(tokens: np.ndarray) -> np.ndarray:
        hidden = subject.hidden(tokens)
        parts = [np.asarray(subject.head.logits(hidden[part])) for part in blocks(len(tokens))]
        return np.concatenate(parts)

    return logits, first
