"""Resolution: exactly one provider per op or group of ops, and every rejection recorded.

Metadata is validated when contracts are read. Then every provider of the operator passes the
filter (contract, phase, dtype, layout, shape, platform) or is rejected with stage and reason; what
is left is ranked by lifecycle and priority inside one equivalence group. Priority is read only
after the filter. Non-goal: JAX; a kernel is a name here.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import msgspec

from cke.errors import CkeError, Diagnostic, Note, Span
from cke.kernel_registry.contract_files import LIFECYCLES, KernelContract, registry
from cke.kernel_registry.operators import OPERATORS, Operator
from cke.kernel_registry.promotion import ranked
from cke.schemas.ir import Contract, TensorType, Value
from cke.schemas.manifest import Rejection, Resolution

STAGES = ("contract", "phase", "dtype", "layout", "shape", "platform", "rank")
WIDENING = ("accumulator", "partial", "frequency", "table")
"""Fields in which a kernel may promise more than is asked."""

_WIDTH = {"bf16": 8, "f16": 11, "f32": 24, "f64": 53}


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One op, or the members of one fusion group: what a provider must fit.

    `results` names the operator's results that must be exposed: those that are read or captured.
    `arguments` are the keyword arguments of the call (`operators.kernel_arguments`).
    """

    operator: str
    phase: str
    function: str
    ops: tuple[str, ...]
    dtype: str
    contract: Contract
    inputs: tuple[TensorType | None, ...] = ()
    weights: tuple[TensorType | None, ...] = ()
    arguments: Mapping[str, Value] = {}
    results: tuple[str, ...] = ()
    layout: str = "row_major"
    platform: str = "cpu"
    span: Span | None = None


def resolve(request: Request, contracts: Sequence[KernelContract] | None = None) -> Resolution:
    """Select the one provider for a request; a CkeError lists the providers when there is none."""
    known = ranked(registry()) if contracts is None else contracts
    providers = [contract for contract in known if contract.operator == request.operator]
    rejections: list[Rejection] = []
    compatible: list[KernelContract] = []
    for provider in providers:
        rejection = _filter(provider, request)
        if rejection is None:
            compatible.append(provider)
        else:
            rejections.append(rejection)
    if not compatible:
        raise _none(request, rejections)
    selected, outranked = _rank(request, compatible, rejections)
    return Resolution(
        phase=request.phase,
        function=request.function,
        ops=request.ops,
        kernel_id=selected.id,
        contract_id=selected.contract_id,
        rejections=tuple(sorted((*rejections, *outranked), key=lambda r: r.kernel_id)),
    )


def covers(operator: str, count: int, phase: str) -> bool:
    """Whether some kernel covers a group of that many ops of the operator in the phase."""
    return any(
        contract.operator == operator
        and contract.members.minimum <= count <= contract.members.maximum
        and phase in contract.phases
        for contract in registry()
    )


def contract_of(kernel_id: str) -> KernelContract:
    """The contract of a kernel that CKE ships; a CkeError for an unknown id."""
    for contract in registry():
        if contract.id == kernel_id:
            return contract
    names = ", ".join(contract.id for contract in registry())
    note = Note(text=f"kernels: {names}", label="help")
    raise CkeError(
        Diagnostic(code="CKE504", message=f"no kernel is called `{kernel_id}`", notes=(note,))
    )


def promised(contract: KernelContract, dtype: str) -> Contract:
    """The kernel's promise for one run dtype, with `model` as that dtype and the first of any."""
    sections = {
        section: {name: _first(value, dtype) for name, value in fields.items()}
        for section, fields in contract.promise.items()
    }
    return Contract(**sections)


def _first(value: Value, dtype: str) -> Value:
    chosen = value["any"][0] if isinstance(value, dict) else value
    return dtype if chosen == "model" else chosen


def _filter(provider: KernelContract, request: Request) -> Rejection | None:
    """The first stage that the provider does not pass, with every reason of that stage."""
    checks = {
        "contract": _contract_reasons,
        "phase": _phase_reasons,
        "dtype": _dtype_reasons,
        "layout": _layout_reasons,
        "shape": _shape_reasons,
        "platform": _platform_reasons,
    }
    for stage, check in checks.items():
        if reasons := list(check(provider, request)):
            return Rejection(kernel_id=provider.id, stage=stage, reason="; ".join(reasons))
    return None


def _contract_reasons(provider: KernelContract, request: Request) -> Iterator[str]:
    for name in request.results:
        if name not in provider.exposes:
            yield f"does not expose `{name}`, which is read or captured"
    for unmet in unmet_requirements(provider, request.contract, request.dtype):
        yield f"{unmet.field}: required {unmet.required}, promises {unmet.promise}"


class Unmet(msgspec.Struct, frozen=True):
    """A field of a required contract (`reduction.partial`) that a promise does not meet."""

    field: str
    required: str
    promise: str


def unmet_requirements(provider: KernelContract, contract: Contract, dtype: str) -> Iterator[Unmet]:
    """Yield every field of a required contract that a kernel does not promise for a run dtype."""
    for section, fields in msgspec.structs.asdict(contract).items():
        offered = provider.promise.get(section, {})
        for name, value in fields.items():
            promise = offered.get(name, offered.get(name.rpartition(".")[2]))
            if not _matches(name.rpartition(".")[2], value, promise, dtype):
                yield Unmet(f"{section}.{name}", _show(value, dtype), _show(promise, dtype))


def _matches(field: str, required: Value, promise: Value, dtype: str) -> bool:
    """Whether a promise meets a requirement; `unspecified` matches any."""
    if required == "unspecified":
        return True
    if promise is None:
        return False
    options = promise["any"] if isinstance(promise, dict) else [promise]
    return any(_meets(field, required, dtype if o == "model" else o) for o in options)


def _meets(field: str, required: Value, offered: Value) -> bool:
    if field in WIDENING and required in _WIDTH and offered in _WIDTH:
        return _WIDTH[offered] >= _WIDTH[required]
    if isinstance(required, (list, tuple)) and isinstance(offered, (list, tuple)):
        return sorted(map(str, required)) == sorted(map(str, offered))
    return cast(bool, required == offered)


def _show(value: Value, dtype: str) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return " | ".join(_show(option, dtype) for option in value["any"])
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(str, value))}]"
    return dtype if value == "model" else str(value)


def _phase_reasons(provider: KernelContract, request: Request) -> Iterator[str]:
    if request.phase not in provider.phases:
        yield f"runs in {', '.join(provider.phases)}, required {request.phase}"


def _dtype_reasons(provider: KernelContract, request: Request) -> Iterator[str]:
    if request.dtype not in provider.dtypes:
        yield f"takes {', '.join(provider.dtypes)}, required {request.dtype}"


def _layout_reasons(provider: KernelContract, request: Request) -> Iterator[str]:
    if request.layout not in provider.layouts:
        yield f"reads {', '.join(provider.layouts)}, required {request.layout}"


def _platform_reasons(provider: KernelContract, request: Request) -> Iterator[str]:
    if request.platform not in provider.platforms:
        yield f"runs on {', '.join(provider.platforms)}, required {request.platform}"


def _shape_reasons(provider: KernelContract, request: Request) -> Iterator[str]:
    members, count = provider.members, len(request.ops)
    if not members.minimum <= count <= members.maximum:
        limits = f"{members.minimum} to {members.maximum}"
        yield f"covers {limits} ops in one call, required {count}"
    for name, allowed in provider.constraints.attributes.items():
        if name in request.arguments and request.arguments[name] not in allowed:
            options = " | ".join(map(str, allowed))
            yield f"`{name}` expects {options}, required {request.arguments[name]}"
    given = _given(OPERATORS[request.operator], request)
    for name in provider.constraints.absent:
        if given.get(name) is not None:
            yield f"takes no `{name}`"
    sizes = _sizes(given)
    for axis, limit in provider.constraints.sizes.items():
        size = sizes.get(axis)
        if isinstance(size, int) and size > limit:
            yield f"takes at most {limit} of {axis}, required {size}"


def _given(operator: Operator, request: Request) -> dict[str, TensorType | None]:
    operands = (*operator.inputs, *operator.weights)
    return {
        operand.name: value
        for operand, value in zip(operands, (*request.inputs, *request.weights), strict=False)
    }


def _sizes(given: Mapping[str, TensorType | None]) -> dict[str, int | str]:
    sizes: dict[str, int | str] = {}
    for value in given.values():
        if value is not None:
            sizes.update(zip(value.axes, value.shape, strict=True))
    return sizes


def _rank(
    request: Request, compatible: Sequence[KernelContract], rejected: Sequence[Rejection]
) -> tuple[KernelContract, list[Rejection]]:
    """The best by lifecycle, then priority; an error when two are equal or groups differ."""
    groups = sorted({contract.equivalence_group for contract in compatible})
    if len(groups) > 1:
        raise _ambiguous(request, compatible, rejected, f"equivalence groups {', '.join(groups)}")
    order = sorted(compatible, key=lambda c: (LIFECYCLES.index(c.lifecycle), -c.priority, c.id))
    best = order[0]
    equal = [c for c in order if (c.lifecycle, c.priority) == (best.lifecycle, best.priority)]
    if len(equal) > 1:
        rank = f"{best.lifecycle} providers of priority {best.priority}"
        raise _ambiguous(request, equal, rejected, rank)
    return best, [
        Rejection(
            kernel_id=other.id,
            stage="rank",
            reason=f"{other.lifecycle} {other.priority} ranks below {best.lifecycle} "
            f"{best.priority} of `{best.id}`",
        )
        for other in order[1:]
    ]


def _what(request: Request) -> str:
    ops = ", ".join(f"`{op}`" for op in request.ops)
    return f"{ops} ({request.operator}, {request.phase}, {request.dtype}, {request.platform})"


def _listed(rejections: Sequence[Rejection]) -> tuple[Note, ...]:
    return tuple(
        Note(text=f"`{r.kernel_id}` rejected at {r.stage}: {r.reason}") for r in rejections
    )


def _none(request: Request, rejections: Sequence[Rejection]) -> CkeError:
    notes = _listed(rejections) or (
        Note(text=f"no kernel implements `{request.operator}`", label="help"),
    )
    message = f"no provider for {_what(request)}"
    return CkeError(Diagnostic(code="CKE502", message=message, span=request.span, notes=notes))


def _ambiguous(
    request: Request,
    equal: Sequence[KernelContract],
    rejections: Sequence[Rejection],
    why: str,
) -> CkeError:
    names = ", ".join(f"`{contract.id}`" for contract in equal)
    message = f"{len(equal)} providers for {_what(request)}: {names}"
    help_ = Note(text=f"they tie as {why}: give one another priority", label="help")
    notes = (*_listed(rejections), help_)
    return CkeError(Diagnostic(code="CKE503", message=message, span=request.span, notes=notes))
