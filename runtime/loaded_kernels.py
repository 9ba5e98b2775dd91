"""What is loaded: the contract of the kernel behind every call of a package's modules.

A call's numerical contract is what the build resolved. Its effective contract is that of the
function which the module holds under the call's name when it runs, so a kernel that was put in
another's place shows.
"""

import ast
import inspect
from functools import cache
from pathlib import Path
from types import ModuleType

from cke.kernel_registry.contract_files import read_contract
from cke.runtime.package import Package

KERNELS = "cke.kernel_registry.kernels."


Contracts = dict[tuple[str, str, str], tuple[str, str | None]]
"""By phase, function and call: the contract that the build resolved, and the effective one."""


def call_contracts(package: Package) -> Contracts:
    """Return the contracts of every call; the effective one is None of a function not ours."""
    found: Contracts = {}
    for program in package.calls.programs:
        module = package.modules[program.phase]
        names = _imported(inspect.getsource(module))
        for function in program.functions:
            for call in function.calls:
                name = names.get((call.kernel_id, call.function), call.function)
                key = program.phase, function.name, call.id
                found[key] = (call.contract_id, _contract(module, name))
    return found


@cache
def _imported(source: str) -> dict[tuple[str, str], str]:
    """Return the name of every kernel (id, function) that the module imports."""
    return {
        (node.module.removeprefix(KERNELS), alias.name): alias.asname or alias.name
        for node in ast.parse(source).body
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(KERNELS)
        for alias in node.names
    }


def _contract(module: ModuleType, name: str) -> str | None:
    home = getattr(getattr(module, name, None), "__module__", "")
    return _contract_id(home.removeprefix(KERNELS)) if home.startswith(KERNELS) else None


@cache
def _contract_id(kernel_id: str) -> str:
    import cke.kernel_registry

    root = Path(cke.kernel_registry.__file__).parent
    file = f"contracts/{kernel_id}.toml"
    return read_contract(file, root.joinpath(file).read_text("utf-8")).contract_id
