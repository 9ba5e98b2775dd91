"""Both generations of a seeded regression, and every result made from them."""

import copy
import functools

import msgspec

from cke.artifacts.engine import RunRequest
from cke.artifacts.fingerprints import canonical_sha, token_digest
from cke.artifacts.pass0 import calibrate
from cke.artifacts.pass1 import localize_tokens
from cke.artifacts.pass2 import Pair, reproduce
from cke.artifacts.pass3 import localize_layers
from cke.artifacts.pass4 import RUNS, Parents, Recapture
from cke.artifacts.reading import Loaded, load_run_report
from cke.artifacts.seeded import Fault, SeededEngine
from cke.artifacts.verify import ROLES, Comparison, EngineRunner
from cke.schemas.run_report import RunReport
from tests.artifacts.documents import PATH, put

FAULT = Fault(2, "mlp_norm_output", 1.3)
REQUEST = RunRequest(tokens=(3, 5, 7), generate=12)


class Generation(msgspec.Struct):
    """The runs of one generation and the results of Passes 0 to 3."""

    original: dict
    rerun: dict
    calibration: object
    tokens: object
    reproduction: object
    layers: object


class Recorder:
    """A runner that keeps what it gave."""

    reruns = True

    def __init__(self, fault):
        self.inner = EngineRunner(SeededEngine(fault=fault))
        self.runs = []

    def run(self, request):
        self.runs.append(self.inner.run(request))
        return self.runs[-1]


def compared(reference, candidate, request=REQUEST, submode="runtime_regression"):
    """A comparison of two runners that nobody hears."""
    return Comparison(
        reference, candidate, request, "runtime_differential", submode, lambda *_: None
    )


@functools.cache
def workflow():
    """A whole comparison: the result, and the runs of both generations by role."""
    recorders = [Recorder(None), Recorder(FAULT)]
    found = compared(*recorders).run()
    return found, [
        dict(zip(ROLES, pair, strict=True))
        for pair in zip(*(r.runs for r in recorders), strict=True)
    ]


def generation(number):
    """Generation 0 is the discovery, 1 the recapture."""
    _, runs = workflow()
    original, rerun = runs[2 * number], runs[2 * number + 1]
    calibration = calibrate(
        *(original[role].report for role in ROLES), prompts=(REQUEST.tokens, REQUEST.tokens)
    )
    tokens = localize_tokens(calibration, *(original[role].report for role in ROLES))
    reproduction = reproduce(calibration, tokens, pair(original), pair(rerun))
    layers = localize_layers(tokens, reproduction, *(rerun[role].side(role) for role in ROLES))
    return Generation(original, rerun, calibration, tokens, reproduction, layers)


def pair(runs):
    return Pair(*(runs[role].report for role in ROLES))


def sides(runs):
    return [runs[role].side(role) for role in ROLES]


def parents():
    first, second = generation(0), generation(1)
    return Parents(first.layers, second.reproduction, second.layers)


def recapture():
    second = generation(1)
    found = [run[role].side(role) for run in (second.original, second.rerun) for role in ROLES]
    return Recapture(dict(zip(RUNS, found, strict=True)))


def edited(loaded, *changes):
    """A report with values at paths changed, loaded anew; token digests are made to fit."""
    document = copy.deepcopy(loaded.document)
    for path, value in changes:
        put(document, path, value)
    body = document["report"]
    for name in ("selected", "emitted"):
        ids = body[f"{name}_token_ids"]
        body[f"{name}_token_count"] = len(ids)
        body[f"{name}_token_digest"] = msgspec.to_builtins(token_digest(ids))
    return load_run_report(document, PATH)


def raw(loaded, *changes):
    """A report changed without a reader's checks, as a caller in memory may hold one."""
    document = copy.deepcopy(loaded.document)
    for path, value in changes:
        put(document, path, value)
    return Loaded(document, msgspec.convert(document, RunReport), canonical_sha(document))


def with_trace(side, *changes, **fields):
    """A side whose trace is changed, with its hash made to fit."""
    trace = copy.deepcopy(side.trace)
    for path, value in changes:
        put(trace, path, value)
    made = msgspec.structs.replace(side, trace=trace, trace_sha256=canonical_sha(trace))
    return msgspec.structs.replace(made, **fields)


def mark(text):
    """Some other fingerprint."""
    return {"algorithm": "fnv1a64", "hex": text * 16, "size_bytes": 1}
