"""The whole comparison of two runtimes: run, compare tokens, reproduce, localise, recapture.

Two generations of parents: Pass 3A finds a layer; four fresh runs with the stages of that layer are
taken, Passes 0 to 3 are made again from them, and Pass 4 rests on the new ones alone.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from cke.artifacts.engine import Engine, RunRequest
from cke.artifacts.execute import execute
from cke.artifacts.fingerprints import canonical_sha, ids_sha, struct_sha
from cke.artifacts.pass0 import calibrate
from cke.artifacts.pass1 import localize_tokens
from cke.artifacts.pass2 import Pair, reproduce
from cke.artifacts.pass3 import localize_layers
from cke.artifacts.pass4 import RUNS, Parents, Recapture, localize_stages
from cke.artifacts.reading import Loaded, load_layer_trace, load_run_report
from cke.artifacts.sources import Side
from cke.schemas.differential import (
    Calibration,
    LayerLocalization,
    Mode,
    PrefixReproduction,
    StageLocalization,
    Submode,
    TokenLocalization,
)
from cke.schemas.run_report import PrefixBinding, RunReport

ROLES = ("reference", "candidate")
Note = Callable[[str, str, str | None], None]


class Captured(msgspec.Struct, frozen=True):
    """What one run left: its report, and its layer trace as parsed JSON."""

    report: Loaded[RunReport]
    layers: dict[str, Any] | None = None

    def side(self, role: str) -> Side:
        """Return the run as one side, with the trace's hash as it was captured."""
        return Side(role, self.report, self.layers, canonical_sha(self.layers))


class Runner(Protocol):
    """One side's runtime. `reruns` is false for recorded artifacts, which have one run."""

    reruns: bool

    def run(self, request: RunRequest) -> Captured:
        """Execute the request."""
        ...


class EngineRunner:
    """Runs an engine in this process."""

    reruns = True

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def run(self, request: RunRequest) -> Captured:
        """Execute the request and check its artifacts as a reader would."""
        documents = execute(self._engine, request).documents()
        report = load_run_report(documents["run_report"], Path("run_report"))
        layers = documents.get("layer_trace")
        if layers is not None:
            load_layer_trace(layers, Path("layer_trace"))
        return Captured(report, layers)


class Findings(msgspec.Struct):
    """Results so far; those of the second generation replace those of the first."""

    calibration: Calibration | None = None
    tokens: TokenLocalization | None = None
    reproduction: PrefixReproduction | None = None
    layers: LayerLocalization | None = None
    stages: StageLocalization | None = None


class Comparison:
    """One attempt; `note` hears of every stage with its status and the hash of its result.

    `kept` holds the artifacts of every run by a file name.
    """

    def __init__(
        self,
        reference: Runner,
        candidate: Runner,
        request: RunRequest,
        mode: Mode,
        submode: Submode,
        note: Note,
    ) -> None:
        self._runners = dict(zip(ROLES, (reference, candidate), strict=True))
        self._request = msgspec.structs.replace(request, context=request.rows)
        self._mode = mode
        self._submode = submode
        self._note = note
        self.findings = Findings()
        self.kept: dict[str, Any] = {}

    def run(self) -> Findings:
        """Go as far as the evidence allows."""
        original = self._pair("original_pair", self._request)
        tokens = self._tokens(original)
        if tokens.pass2_disposition != "ready" or not self._can_rerun(tokens):
            if tokens.generated_index is not None:
                self._reproduction(original, None)
            return self.findings
        step = tokens.runtime_checkpoint_step
        rerun = self._pair("reproduction_pair", self._bound_request(tokens), step)
        self._reproduction(original, rerun)
        discovery = self._layers(rerun)
        if discovery.status == "observable_mismatch_found":
            self._recapture(discovery)
        return self.findings

    def _can_rerun(self, tokens: TokenLocalization) -> bool:
        prefix = tokens.prefix
        assert prefix is not None, "a mismatch has a prefix"
        embedded = prefix.token_ids is not None
        within = tokens.mismatch_kind == "token_id_mismatch"
        return embedded and within and all(item.reruns for item in self._runners.values())

    def _pair(
        self,
        name: str,
        requests: RunRequest | dict[str, RunRequest],
        step: int | None = None,
        layer: int | None = None,
    ) -> dict[str, Captured]:
        captured: dict[str, Captured] = {}
        for role in ROLES:
            request = requests if isinstance(requests, RunRequest) else requests[role]
            request = msgspec.structs.replace(request, checkpoint_step=step, intra_layer=layer)
            run = captured[role] = self._runners[role].run(request)
            self.kept[f"{name}_{role}_report.json"] = run.report.document
            if run.layers is not None:
                self.kept[f"{name}_{role}_layers.json"] = run.layers
            self._note(f"{name}_{role}", "captured", captured[role].report.sha256)
        return captured

    def _tokens(self, original: dict[str, Captured]) -> TokenLocalization:
        reference, candidate = (original[role].report for role in ROLES)
        prompts = (self._request.tokens, self._request.tokens)
        calibration = calibrate(reference, candidate, self._mode, self._submode, prompts=prompts)
        self._note("pass0", calibration.verdict, struct_sha(calibration))
        tokens = localize_tokens(calibration, reference, candidate)
        self._note("pass1", tokens.status, struct_sha(tokens))
        if self.findings.tokens is None or tokens.pass2_disposition == "ready":
            self.findings.calibration, self.findings.tokens = calibration, tokens
        return tokens

    def _reproduction(
        self, original: dict[str, Captured], rerun: dict[str, Captured] | None
    ) -> None:
        calibration, tokens = self.findings.calibration, self.findings.tokens
        assert calibration is not None, "tokens come first"
        assert tokens is not None, "tokens come first"
        again = None if rerun is None else _reports(rerun)
        found = reproduce(calibration, tokens, _reports(original), again)
        self._note("pass2", found.status, struct_sha(found))
        self.findings.reproduction = found

    def _layers(self, rerun: dict[str, Captured], name: str = "pass3a") -> LayerLocalization:
        tokens, reproduction = self.findings.tokens, self.findings.reproduction
        assert tokens is not None, "tokens come first"
        assert reproduction is not None, "the reproduction comes first"
        sides = (rerun[role].side(role) for role in ROLES)
        found = localize_layers(tokens, reproduction, *sides)
        self._note(name, found.status, struct_sha(found))
        self.findings.layers = found
        return found

    def _recapture(self, discovery: LayerLocalization) -> None:
        """Take the four fresh runs and make every pass again from them.

        Where the fresh runs have no mismatch to reproduce, what was found before stays, without
        the parents that Pass 4 needs.
        """
        layer, step = discovery.target_layer, discovery.runtime_checkpoint_step
        original = self._pair("recapture_original", self._request, step, layer)
        tokens = self._tokens(original)
        parents, sides = Parents(discovery, None, None), list[Side]()
        if tokens.pass2_disposition == "ready":
            requests = self._bound_request(tokens, struct_sha(discovery))
            rerun = self._pair("recapture_reproduction", requests, step, layer)
            self._reproduction(original, rerun)
            layers = self._layers(rerun, "pass3b")
            parents = Parents(discovery, self.findings.reproduction, layers)
            sides = [pair[role].side(role) for pair in (original, rerun) for role in ROLES]
        stages = localize_stages(parents, Recapture(dict(zip(RUNS, sides, strict=False))))
        self._note("pass4", stages.status, struct_sha(stages))
        self.findings.stages = stages

    def _bound_request(
        self, tokens: TokenLocalization, localization: str | None = None
    ) -> dict[str, RunRequest]:
        """Return the request that reaches the boundary, bound to each role's sources."""
        prefix = tokens.prefix
        assert prefix is not None, "a mismatch has a prefix"
        forced = prefix.token_ids or ()
        requests: dict[str, RunRequest] = {}
        for role in ROLES:
            binding = None if not forced else self._binding(tokens, role, forced, localization)
            requests[role] = msgspec.structs.replace(
                self._request, generate=1, forced=forced, binding=binding
            )
        return requests

    def _binding(
        self,
        tokens: TokenLocalization,
        role: str,
        forced: tuple[int, ...],
        localization: str | None,
    ) -> PrefixBinding:
        policy = self._request.policy
        return PrefixBinding(
            mode="injected_selected_token_prefix_v1",
            token_count=len(forced),
            token_ids_sha256=ids_sha(forced),
            prompt_token_count=len(self._request.tokens),
            selection_policy=policy.name,
            selection_policy_sha256=policy.sha256,
            source_pass0_artifact_sha256=tokens.pass0_sha256,
            source_original_run_report_sha256=getattr(tokens, f"{role}_report_sha256"),
            source_pass1_artifact_sha256=struct_sha(tokens),
            source_localization_ref_sha256=localization or struct_sha(tokens),
        )


def _reports(pair: dict[str, Captured]) -> Pair:
    return Pair(*(pair[role].report for role in ROLES))
