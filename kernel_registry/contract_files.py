"""Contracts of kernels, read strictly from ``contracts/<id>.toml``.

A contract is all that the compiler knows of a kernel: where it applies, what it promises, and how
it ranks. Goal: a wrong file is one clear error. Non-goal: any import of the kernel itself.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Literal

import msgspec

from cke.errors import CkeError, Diagnostic, Note
from cke.kernel_registry.operators import OPERATORS
from cke.schemas.ir import Value

AMBIGUOUS = frozenset(
    (
        "auto",
        "any",
        "best",
        "default",
        "fast",
        "fp16",
        "fp32",
        "half",
        "mixed",
        "normal",
        "standard",
    )
)
"""Words that name no contract: an id that holds one is refused."""

LIFECYCLES = ("production", "candidate", "diagnostic", "deprecated")
"""From the first choice to the last."""

Phase = Literal["prefill", "decode", "encode"]


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of what a contract file holds."""


class Members(_Strict, frozen=True):
    """How many ops of the operator one call may cover."""

    minimum: int = 1
    maximum: int = 1


class Constraint(_Strict, frozen=True):
    """Values that an attribute or layout fact may have; `absent` operands must not be given."""

    attributes: dict[str, list[Value]] = {}
    absent: list[str] = []
    sizes: dict[str, int] = {}


class Validation(_Strict, frozen=True):
    """How well the promise is known: unresolved, observed or validated, each with evidence."""

    state: Literal["unresolved", "observed", "validated"]
    evidence: list[str] = []


class KernelContract(_Strict, frozen=True):
    """What a kernel is and promises.

    `promise` has the sections of `cke.schemas.ir.Contract`; a list of values means any of them,
    `model` is the dtype of the run. `exposes` are the operator's results that the kernel returns.
    """

    id: str
    contract_id: str
    operator: str
    function: str
    provider: Literal["xla", "ffi", "pallas"]
    lifecycle: Literal["production", "candidate", "diagnostic", "deprecated"]
    priority: int
    equivalence_group: str
    phases: list[Phase]
    dtypes: list[str]
    layouts: list[str]
    platforms: list[str]
    exposes: list[str]
    promise: dict[str, dict[str, Value]]
    validation: Validation
    members: Members = Members()
    constraints: Constraint = Constraint()


SECTIONS: dict[str, frozenset[str]] = {
    "storage": frozenset(("input", "weight", "output")),
    "compute": frozenset(("input", "weight", "accumulator")),
    "rounding": frozenset(("mode", "points")),
    "reduction": frozenset(("kind", "order", "partial", "merge")),
    "position": frozenset(
        ("pairing", "width", "base", "scaling", "frequency", "table", "table_rounding", "rounding")
    ),
    "threading": frozenset(("partition", "deterministic", "changes_order")),
    "execution": frozenset(("phase", "prefill", "cache")),
}
"""The numerical vocabulary: fields by section. `<result>.<field>` speaks of one result."""


def _refuse(file: str, path: str | None, message: str, help_: str) -> CkeError:
    note = Note(text=help_, label="help")
    return CkeError(Diagnostic(code="CKE501", message=message, file=file, path=path, notes=(note,)))


def read_contract(file: str, text: str) -> KernelContract:
    """Read one contract; a CkeError names the file and the path of what is wrong."""
    try:
        contract = msgspec.convert(tomllib.loads(text), KernelContract, strict=True)
    except tomllib.TOMLDecodeError as error:
        raise _refuse(file, None, f"not TOML: {str(error).lower()}", "mend the file") from error
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at ")
        raise _refuse(
            file,
            path.strip("`") or "$",
            message[:1].lower() + message[1:],
            "the fields of a contract are those of `KernelContract`",
        ) from error
    _check(file, contract)
    return contract


def _check(file: str, contract: KernelContract) -> None:
    """Check what types cannot say: the operator, the vocabulary and the ids."""
    operator = OPERATORS.get(contract.operator)
    if operator is None:
        raise _refuse(
            file, "$.operator", f"no operator is called `{contract.operator}`", "see the table"
        )
    results = [result.name for result in operator.results]
    for name in contract.exposes:
        if name not in results:
            message = f"expected results among {', '.join(results)}, got `{name}`"
            raise _refuse(file, "$.exposes", message, "name results of the operator")
    for path, words in (("$.id", contract.id), ("$.contract_id", contract.contract_id)):
        if found := AMBIGUOUS & set(re.split(r"[._\-]", words)):
            message = f"`{words}` says `{min(found)}`, which names no contract"
            raise _refuse(file, path, message, "say what is stored, computed and accumulated")
    _check_promise(file, contract.promise, results)


def _check_promise(
    file: str, promise: Mapping[str, Mapping[str, Value]], results: Iterable[str]
) -> None:
    for section, fields in promise.items():
        known = SECTIONS.get(section)
        if known is None:
            message = f"expected a section among {', '.join(SECTIONS)}, got `{section}`"
            raise _refuse(file, "$.promise", message, "see the numerical vocabulary")
        for field in fields:
            result, dot, name = field.rpartition(".")
            if name not in known or (dot and result not in results):
                message = f"expected a field among {', '.join(sorted(known))}, got `{field}`"
                raise _refuse(file, f"$.promise.{section}", message, "see the vocabulary")


def read_contracts(folder: Traversable) -> tuple[KernelContract, ...]:
    """Read every contract of a folder, in order of its id; the stem of a file is that id."""
    contracts = []
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if not entry.name.endswith(".toml"):
            continue
        file = f"contracts/{entry.name}"
        contract = read_contract(file, entry.read_text("utf-8"))
        if contract.id != entry.name.removesuffix(".toml"):
            message = f"expected the file's own stem, got `{contract.id}`"
            raise _refuse(file, "$.id", message, "a contract and its kernel share one stem")
        contracts.append(contract)
    return tuple(contracts)


@cache
def registry() -> tuple[KernelContract, ...]:
    """Every contract that CKE ships."""
    return read_contracts(files("cke.kernel_registry") / "contracts")
