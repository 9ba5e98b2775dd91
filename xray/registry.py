"""Call IR against the registry: the kernel that was resolved, under a contract that it keeps.

Declared metadata alone is read; neither model runs.
"""

from cke.kernel_registry.resolve import contract_of, unmet_requirements
from cke.schemas.manifest import Manifest
from cke.xray.classes import Owner
from cke.xray.finding import Finding


def registry_fault(manifest: Manifest) -> Finding | None:
    """Return where call IR, resolutions and registry disagree on the kernel of an op."""
    chosen = {
        (item.phase, item.function, op): item for item in manifest.resolutions for op in item.ops
    }
    for program in manifest.calls.programs:
        for function in program.functions:
            for call in function.calls:
                for member in call.members:
                    resolved = chosen.get((program.phase, function.name, member.op))
                    if resolved is None or resolved.kernel_id != call.kernel_id:
                        was = "nothing" if resolved is None else f"`{resolved.kernel_id}`"
                        return _kernel(
                            call.kernel_id,
                            member.op,
                            f"call IR of {program.phase} runs `{call.kernel_id}` for `{member.op}` "
                            f"of `{function.name}`, and {was} was resolved",
                            "KERNEL_BINDING_MISMATCH",
                        )
                contract = contract_of(call.kernel_id)
                if contract.function != call.function:
                    return _kernel(
                        call.kernel_id,
                        call.id,
                        f"call IR calls `{call.function}`, the contract of `{call.kernel_id}` "
                        f"declares `{contract.function}`",
                        "KERNEL_BINDING_MISMATCH",
                    )
                if contract.contract_id != call.contract_id:
                    return _kernel(
                        call.kernel_id,
                        call.id,
                        f"call IR was resolved under contract `{call.contract_id}`, the registry "
                        f"now has `{contract.contract_id}`",
                        "NUMERICAL_CONTRACT_MISMATCH",
                    )
                for member in call.members:
                    for unmet in unmet_requirements(contract, member.contract, manifest.dtype):
                        return _kernel(
                            call.kernel_id,
                            member.op,
                            f"`{member.op}` of `{function.name}` requires {unmet.field} "
                            f"{unmet.required}, the contract of `{call.kernel_id}` promises "
                            f"{unmet.promise}",
                            _class_of_requirement(unmet.field),
                        )
    return None


def _class_of_requirement(field: str) -> str:
    section, _, name = field.partition(".")
    if section in ("storage", "rounding"):
        return "STORAGE_CONTRACT_MISMATCH"
    if section == "reduction" or name.rpartition(".")[2] == "accumulator":
        return "REDUCTION_CONTRACT_MISMATCH"
    return "NUMERICAL_CONTRACT_MISMATCH"


def _kernel(kernel_id: str, op: str, text: str, name: str) -> Finding:
    owner: Owner | None = "kernel_map" if name == "STORAGE_CONTRACT_MISMATCH" else None
    return Finding(failure_class=name, owner=owner, op=op, kernel_id=kernel_id, because=(text,))
