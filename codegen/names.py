"""Names of generated code: short as in the circuit, never two live values under one name.

An edge takes the last part of its own name (`attention.q.2` is `q`). A name is bound again, as in
the circuit, once nothing reads its former value; until then the new value gets a number.
"""

import keyword
import re

from cke.schemas.call_ir import Call, Function, Program
from cke.schemas.ir import Step

BUILT = {"w", "state", "captured", "step", "named_scope", "Array", "Weights", "State", "Captured"}


def kernel_names(program: Program) -> dict[tuple[str, str], str]:
    """Return the name in the module of every kernel (id, function) that the program calls.

    A function keeps its name; two kernels with one function name are told apart by their ids.
    """
    used = {
        (call.kernel_id, call.function) for function in program.functions for call in function.calls
    }
    functions = [function for _, function in used]
    taken = {function.name for function in program.functions} | BUILT
    return {
        (kernel_id, function): function
        if functions.count(function) == 1 and function not in taken
        else kernel_id
        for kernel_id, function in sorted(used)
    }


def step_name(step: Step) -> str:
    """Return the key of a step's weights and state: `layer.<L>`, or its function's name."""
    return step.function if step.layer is None else f"layer.{step.layer}"


def base_name(edge: str) -> str:
    """Return the identifier that an edge's name suggests: `attention.q.2` gives `q`.

    The result of a block is named after its instance: `attention.return` gives `attention`.
    """
    parts = [part for part in re.split(r"[./]", edge) if part and not part.isdigit()]
    named = [part for part in parts if part != "return"]
    name = re.sub(r"\W", "_", named[-1] if named else "output")
    return f"{name}_" if keyword.iskeyword(name) or name[0].isdigit() else name


def scalar_name(scalar: str) -> str:
    """Return the parameter of a scalar: `attention.sdpa.scale` gives `attention_sdpa_scale`."""
    return scalar.replace(".", "_")


class Names:
    """The Python name of every edge of a function, given out in the order of its calls."""

    def __init__(self, function: Function, reserved: set[str]) -> None:
        self._reserved = reserved | BUILT
        self._names: dict[str, str] = {}
        self._holder: dict[str, str] = {}
        self._bound_at: dict[str, int] = {}
        self._last_read = _last_reads(function)
        self.slots: dict[str, str] = {}
        for parameter in function.parameters:
            self._give(parameter.name, base_name(parameter.name), -1)
        for scalar in function.scalars:
            self._give(scalar.name, scalar_name(scalar.name), -1)

    def __getitem__(self, edge: str) -> str:
        return self._names[edge]

    def get(self, edge: str) -> str | None:
        """Return the name of an edge, or None when it is not bound."""
        return self._names.get(edge)

    def bind(self, call: Call, index: int) -> list[str]:
        """Name the results of the call at `index`; a result that is not live is `_`."""
        targets = []
        if call.cache is not None:
            name = self._free(base_name(call.cache.slot), index)
            self._give(call.cache.slot, name, index)
            self.slots[call.cache.slot] = name
            targets.append(name)
        for edge in call.results:
            name = self._free(base_name(edge.name), index) if edge.live else "_"
            if edge.live:
                self._give(edge.name, name, index)
            targets.append(name)
        return targets

    def _give(self, edge: str, name: str, index: int) -> None:
        self._names[edge] = name
        self._bound_at[name] = index
        self._holder[name] = edge

    def _free(self, base: str, index: int) -> str:
        name, number = base, 1
        while name in self._reserved or self._is_live(name, index):
            number += 1
            name = f"{base}_{number}"
        return name

    def _is_live(self, name: str, index: int) -> bool:
        holder = self._holder.get(name)
        if holder is None:
            return False
        return self._bound_at[name] == index or self._last_read.get(holder, index) > index


def _last_reads(function: Function) -> dict[str, int]:
    """Return the index of the last call that reads an edge; past the end for what is returned."""
    last = {
        argument.name: index
        for index, call in enumerate(function.calls)
        for argument in call.arguments
        if argument.source in ("edge", "scalar") and argument.name is not None
    }
    end = len(function.calls)
    returned = [*function.results, *(slot.name for slot in function.state)]
    return last | dict.fromkeys(returned, end) | {item.name: end for item in function.scalars}
