"""Laws 1 to 5: the baseline, determinism, frozen input, the vocabulary, and the binding."""

from typing import Any

from cke.fidelity.checks.evidence import Document, Evidence, Problem, field, is_count
from cke.fidelity.digests import token_sha256
from cke.fidelity.fields import MISSING, UNQUANTIZED, is_number, mismatches
from cke.fidelity.freeze import moment

SETTINGS_OFF = {
    "enable_prefix_caching": "2.2",
    "autotuned_kernels": "2.4",
    "jit_kernel_selection": "2.4",
    "device_graphs": "2.4",
}
IDENTICAL = (
    *("enforce_eager", "enable_prefix_caching", "max_num_seqs", "autotuned_kernels"),
    *("jit_kernel_selection", "device_graphs", "tensor_parallel_size", "block_positions"),
)
"""Settings that reference and candidate share; only the cache dtype may follow the model."""
EAGER_RUNNER = "cke-eager"


def zero_baseline(evidence: Evidence) -> list[Problem]:
    """Law 1."""
    baseline = evidence.self_report
    if baseline is None:
        return [Problem("1.1", "the reference was not scored against a capture of itself")]
    problems = [*_baseline_identity(evidence, baseline), *_baseline_zero(baseline)]
    for name in ("model_runner", "tensor_parallel_size"):
        ours, theirs = field(evidence.report, name), field(baseline, name)
        if ours is MISSING or ours != theirs:
            problems.append(Problem("1.4", f"`{name}`: baseline {theirs!r}, candidate {ours!r}"))
    for side, document in (("baseline", baseline), ("candidate", evidence.report)):
        cache = field(document, "kv_cache_dtype")
        if cache not in UNQUANTIZED:
            problems.append(Problem("1.5", f"the {side} caches in {_shown(cache)}"))
    return problems


def _baseline_identity(evidence: Evidence, baseline: Document) -> list[Problem]:
    problems = []
    own, reference = (
        field(baseline, name) for name in ("student_weights_sha256", "reference_weights_sha256")
    )
    if own is MISSING or own != reference:
        problems.append(Problem("1.1", "the baseline's candidate is not the reference itself"))
    same_capture = field(baseline, "capture_manifest_sha256")
    if same_capture is MISSING or same_capture != field(evidence.report, "capture_manifest_sha256"):
        problems.append(Problem("1.1", "the baseline was scored against another capture"))
    begun, scored = (moment(field(d, "scored_at")) for d in (baseline, evidence.report))
    late = begun is None or scored is None or begun > scored
    if late:
        problems.append(Problem("1.1", "a candidate was scored before the baseline"))
    return problems


def _baseline_zero(baseline: Document) -> list[Problem]:
    problems = []
    mean = field(baseline, "mean_kld")
    if not is_number(mean) or mean != 0.0:
        problems.append(Problem("1.2", f"the baseline's mean KLD is {_shown(mean)}, not 0.0"))
    rows, length, start = (field(baseline, n) for n in ("rows", "context_length", "score_from"))
    count = field(baseline, "num_positions")
    if not all(map(is_count, (rows, length, start, count))) or count != rows * (length - 1 - start):
        problems.append(
            Problem("1.3", f"the baseline has {_shown(count)} positions for {_shown(rows)} rows")
        )
    for name in ("max_kld", "min_kld", "nonzero_positions"):
        value = field(baseline, name)
        if not is_number(value) or value != 0:
            problems.append(Problem("1.10", f"the baseline's `{name}` is {_shown(value)}, not 0"))
    return problems


def repeat_spread(study: Document | None) -> tuple[float | None, list[Problem]]:
    """Return the widest pairwise mean of a repeat study, and why it is none."""
    pairs = field(study, "pairwise")
    whole = isinstance(pairs, list) and len(pairs) == 3 and field(study, "captures") == 3
    means = [field(pair, "mean_kld") for pair in pairs] if isinstance(pairs, list) else []
    named = {tuple(sorted(map(str, field(pair, "pair")))) for pair in pairs} if whole else set()
    if not whole or len(named) != 3 or not all(map(is_number, means)):
        text = "a repeat study needs three captures and all three pairs scored"
        return None, [Problem("1.6", text)]
    tokens = {str(field(pair, "token_sha256")) for pair in pairs}
    if len(tokens) != 1 or str(MISSING) in tokens:
        return None, [Problem("1.6", "the repeat study's captures are not over identical tokens")]
    return max(abs(mean) for mean in means), []


def determinism(evidence: Evidence) -> list[Problem]:
    """Law 2."""
    sides = (("capture", evidence.manifest), ("candidate", evidence.report))
    problems = []
    for side, document in sides:
        problems += _side(side, document)
    for name in IDENTICAL:
        theirs, ours = (field(document, name) for _, document in sides)
        if theirs is MISSING or theirs != ours or type(theirs) is not type(ours):
            text = f"`{name}`: capture {_shown(theirs)}, candidate {_shown(ours)}"
            problems.append(Problem("2.5", text))
    return problems


def _side(side: str, document: Document | None) -> list[Problem]:
    problems = []
    if field(document, "enforce_eager") is not True:
        problems.append(Problem("2.1", f"the {side} was not run eagerly"))
    for name, line in SETTINGS_OFF.items():
        if field(document, name) is not False:
            problems.append(Problem(line, f"`{name}` is not recorded as off by the {side}"))
    count = field(document, "max_num_seqs")
    if not is_count(count) or count < 1:
        problems.append(Problem("2.3", f"the {side} records no fixed `max_num_seqs`"))
    size = field(document, "tensor_parallel_size")
    if not is_count(size) or size < 1:
        problems.append(Problem("2.5", f"the {side} records no `tensor_parallel_size`"))
    cache, compute = field(document, "kv_cache_dtype"), field(document, "compute_dtype")
    if cache not in UNQUANTIZED or cache != compute:
        text = f"the {side} computes in {_shown(compute)} and caches in {_shown(cache)}"
        problems.append(Problem("2.6", text))
    if field(document, "authoritative") is not True:
        problems.append(Problem("2.7", f"the {side} is not labelled `authoritative: true`"))
    if field(document, "model_runner") != EAGER_RUNNER:
        runner = _shown(field(document, "model_runner"))
        problems.append(Problem("2.9", f"the {side} ran by {runner}, a compiled program"))
    return problems


def frozen_input(evidence: Evidence) -> list[Problem]:
    """Law 3."""
    suite, names = evidence.suite, field(evidence.manifest, "contexts")
    if suite is None or not isinstance(names, list):
        return [Problem("3.1", "the scored tokens are of no published suite")]
    by_id = {item.context_id: item for item in suite.contexts}
    known = [by_id[name] for name in names if name in by_id]
    derived = token_sha256(item.token_ids for item in known)
    problems = []
    for side, document in (("report", evidence.report), ("capture", evidence.manifest)):
        found = field(document, "token_sha256")
        if found != derived or len(known) != len(names):
            problems.append(Problem("3.2", f"the {side}'s token hash is not the suite's"))
    if suite.manifest.get("token_sha256") != suite.token_sha256("all"):
        problems.append(Problem("3.4", "the suite's token hash is not that of its IDs"))
    return problems


def real_vocabulary(evidence: Evidence) -> list[Problem]:
    """Law 4."""
    scored = field(evidence.report, "kld_vocab_size")
    real = field(
        evidence.suite.manifest if evidence.suite else None, "tokenizer.unpadded_vocab_size"
    )
    problems = []
    if not is_count(scored) or scored != real:
        text = f"`kld_vocab_size` is {_shown(scored)}, the tokenizer has {_shown(real)} tokens"
        problems.append(Problem("4.1", text))
    for side, document in (("candidate", evidence.report), ("reference", evidence.manifest)):
        declared = field(document, "declared_vocab_size")
        if not is_count(declared) or not is_count(scored) or not scored <= declared:
            text = f"`kld_vocab_size` exceeds the {side}'s declared {_shown(declared)}"
            problems.append(Problem("4.2", text))
    return problems


def manifest_binding(evidence: Evidence) -> list[Problem]:
    """Law 5."""
    if evidence.manifest is None:
        return [Problem("5.2", "the capture has no manifest")]
    return [Problem("5.1", text) for text in mismatches(evidence.manifest, evidence.report)]


def _shown(value: Any) -> str:
    return "nothing" if value is MISSING else repr(value)
