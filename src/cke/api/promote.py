"""Promotion of a provider: a model runs under both providers, against one trace of the oracle."""

from importlib.resources import files as resources
from pathlib import Path

import msgspec

from cke.api.evidence import oracle_trace, subject_trace
from cke.api.model import Model, load
from cke.api.requests import default_request
from cke.errors import CkeError, Diagnostic, Note
from cke.errors.files import write_atomically
from cke.kernel_registry.contract_files import (
    LIFECYCLES,
    KernelContract,
    read_contract,
    registry,
)
from cke.kernel_registry.operators import OPERATORS
from cke.kernel_registry.promotion import preferring, promoted_text
from cke.kernel_registry.resolve import contract_of
from cke.runtime.schedule import CaptureRequest
from cke.runtime.trace_reader import TraceFolder, read_trace
from cke.schemas.numerical_report import Report
from cke.schemas.provider_gate import EPSILON, SCHEMA, VERSION, Document, ProviderGate
from cke.schemas.reading import canonical_sha256, to_json
from cke.xray.diff import diff_traces
from cke.xray.provider_gate import provider_gate

GATE = "gate.json"


def promote(
    kernel: str,
    model: Path,
    *,
    oracle: str,
    out: Path,
    circuit: str | Path | None = None,
    dtype: str = "float32",
    request: CaptureRequest | None = None,
    epsilon: float = EPSILON,
) -> ProviderGate:
    """Return the gate of a candidate for the place of its incumbent; evidence goes to `out`."""
    candidate = contract_of(kernel)
    loaded = load(model, circuit, dtype)
    incumbent = incumbent_of(candidate, loaded)
    rows = request or msgspec.structs.replace(default_request(loaded.manifest), forced=((1,),))
    asked = _exposed(rows, candidate, loaded)
    oracle_trace(model, oracle, asked, out / "oracle", dtype=dtype)
    theirs = read_trace(out / "oracle")
    before = _measured(loaded, asked, out / "incumbent", theirs)
    with preferring(candidate.id):
        changed = load(model, circuit, dtype)
        after = _measured(changed, asked, out / "candidate", theirs)
    gate = provider_gate(incumbent, candidate, before, after, epsilon)
    write_atomically(out / GATE, to_json(document_of(gate)))
    return gate


def document_of(gate: ProviderGate) -> Document:
    """Return the gate in its envelope, with the hash of its body."""
    return Document(schema=SCHEMA, version=VERSION, body=gate, body_sha256=canonical_sha256(gate))


def incumbent_of(candidate: KernelContract, model: Model) -> KernelContract:
    """Return the provider whose place a candidate would take; CKE505 when there is none."""
    if candidate.lifecycle != "candidate":
        raise _refused(
            f"expected a kernel in lifecycle `candidate`, got `{candidate.id}` in "
            f"`{candidate.lifecycle}`",
            "`cke explain kernel OPERATOR` shows the lifecycle of every provider",
        )
    used = {item.kernel_id for item in model.manifest.resolutions}
    group = [
        contract
        for contract in registry()
        if contract.operator == candidate.operator
        and contract.equivalence_group == candidate.equivalence_group
        and contract.id in used
    ]
    if not group:
        raise _refused(
            f"expected a model that runs a provider of group `{candidate.equivalence_group}`, got "
            "one that runs none",
            f"give a model whose circuit has `{candidate.operator}`",
        )
    return min(group, key=lambda item: (LIFECYCLES.index(item.lifecycle), -item.priority))


def _refused(message: str, help_: str) -> CkeError:
    note = Note(help_, label="help")
    return CkeError(Diagnostic(code="CKE505", message=message, notes=(note,)))


def _exposed(request: CaptureRequest, candidate: KernelContract, model: Model) -> CaptureRequest:
    """Return the request without the results that the candidate does not expose."""
    results = OPERATORS[candidate.operator].results
    names: set[str] = set()
    hidden: set[str] = set()
    for item in model.manifest.checkpoints:
        place = min(item.result, len(results) - 1)
        other = item.operator == candidate.operator and (
            results[place].name not in candidate.exposes
        )
        (hidden if other else names).add(item.checkpoint.name)
    return msgspec.structs.replace(request, edges=frozenset(names - hidden))


def _measured(model: Model, request: CaptureRequest, out: Path, theirs: TraceFolder) -> Report:
    subject_trace(model, request, out)
    return diff_traces(read_trace(out), theirs)


def write_promotion(gate: ProviderGate, registry_folder: Path | None = None) -> tuple[Path, Path]:
    """Edit the contract of a promoted kernel, and keep its gate; return both files.

    Both are written or neither. A gate that is not monotonic is CKE505, whatever it says of itself.
    """
    regressed = [row.checkpoint_id for row in gate.rows if row.state in ("worse", "missing")]
    if not gate.promoted or gate.reasons or regressed or not gate.calls:
        why = next(iter(gate.reasons), f"{len(regressed)} rows regress or are missing")
        raise _refused(
            f"expected a gate that promotes `{gate.candidate}`, got one that does not: {why}",
            "a provider takes another's place only where no row of its gate regresses",
        )
    folder = registry_folder or Path(str(resources("cke.kernel_registry")))
    contract = folder / "contracts" / f"{gate.candidate}.toml"
    kept = folder / "gates" / f"{gate.candidate}.json"
    evidence = f"kernel_registry/gates/{kept.name}"
    priority = contract_of(gate.incumbent).priority + 100
    text = promoted_text(contract.read_text("utf-8"), priority, evidence)
    _check_promoted(contract.name, text, priority, evidence)
    before = kept.read_bytes() if kept.is_file() else None
    write_atomically(kept, to_json(document_of(gate)))
    try:
        write_atomically(contract, text.encode())
    except BaseException:
        kept.unlink() if before is None else write_atomically(kept, before)
        raise
    return contract, kept


def _check_promoted(name: str, text: str, priority: int, evidence: str) -> None:
    """Raise CKE505 unless the edited contract reads back as one in production, with its gate."""
    after = read_contract(f"contracts/{name}", text)
    told = (after.lifecycle, after.priority, evidence in after.validation.evidence)
    if told != ("production", priority, True):
        raise _refused(
            f"expected `contracts/{name}` with a line each of `lifecycle`, `priority` and "
            "`evidence = [`, got a file that cannot be edited",
            "write each on a line of its own, as in the other contracts",
        )
