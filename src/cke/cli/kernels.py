"""What `cke explain kernel` shows: a kernel's contract, or every provider of an operator."""

from collections.abc import Iterator
from typing import Any

import msgspec

from cke.errors import CkeError, Diagnostic, Note
from cke.kernel_registry.contract_files import LIFECYCLES, KernelContract, registry
from cke.kernel_registry.operators import OPERATORS


def explain_kernel(name: str) -> dict[str, Any]:
    """The contracts that a kernel id or an operator's name stands for, best first.

    An operator of the same name as one of its kernels shows all of its providers.
    """
    return {"name": name, "kernels": [msgspec.to_builtins(c) for c in _providers(name)]}


def explain_kernel_text(name: str) -> str:
    """The same for a reader, one paragraph per provider."""
    lines: list[str] = []
    if name in OPERATORS:
        lines += [f"operator {name}: {OPERATORS[name].summary}", ""]
    for contract in _providers(name):
        lines += [*_contract_lines(contract), ""]
    return "\n".join(lines).rstrip()


def _providers(name: str) -> list[KernelContract]:
    found = [c for c in registry() if c.operator == name] or [c for c in registry() if c.id == name]
    if not found:
        names = ", ".join(c.id for c in registry())
        notes = (
            Note(text=f"kernels: {names}", label="help"),
            Note(text=f"operators: {', '.join(OPERATORS)}", label="help"),
        )
        message = f"no kernel is called `{name}`"
        raise CkeError(Diagnostic(code="CKE504", message=message, notes=notes))
    return sorted(found, key=lambda c: (LIFECYCLES.index(c.lifecycle), -c.priority, c.id))


def _contract_lines(contract: KernelContract) -> Iterator[str]:
    yield f"kernel {contract.id} ({contract.lifecycle}, priority {contract.priority})"
    yield f"  contract   {contract.contract_id}, {contract.validation.state}"
    yield f"  group      {contract.equivalence_group}"
    yield f"  runs in    {', '.join(contract.phases)}"
    yield f"  dtypes     {', '.join(contract.dtypes)}"
    yield f"  platforms  {', '.join(contract.platforms)} ({contract.provider})"
    yield f"  exposes    {', '.join(contract.exposes) or 'nothing'}"
    if contract.members.maximum > 1:
        yield f"  covers     {contract.members.minimum} to {contract.members.maximum} ops a call"
    for section, fields in contract.promise.items():
        said = ", ".join(f"{name} {_text(value)}" for name, value in fields.items())
        yield f"  {section:<10} {said}"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return " | ".join(map(_text, value["any"]))
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)
