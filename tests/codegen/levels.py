"""The toy at every level, with kernels written by hand: lowering without the registry."""

import msgspec

from cke.codegen.build_ir import BuildIR, Op
from cke.codegen.levels import Levels
from cke.codegen.passes.lower_build_to_graph import lower_build_to_graph
from cke.codegen.passes.lower_graph_to_lowered import lower_graph_to_lowered
from cke.codegen.passes.lower_lowered_to_call import lower_lowered_to_call
from cke.schemas.ir import KernelBinding
from tests.codegen.toy import toy

GROUPS = {
    "attention.q_proj": ("attention.qkv", 0),
    "attention.k_proj": ("attention.qkv", 1),
    "attention.v_proj": ("attention.qkv", 2),
    "mlp.gate_proj": ("mlp.gate_up", 0),
    "mlp.up_proj": ("mlp.gate_up", 1),
}


def with_kernels(ir: BuildIR) -> BuildIR:
    """Return the toy with one kernel per op, and the fusion groups of `GROUPS`."""
    return map_ops(ir, _bind)


def map_ops(ir: BuildIR, change: object) -> BuildIR:
    """Return the IR with `change` applied to every op."""
    replace = msgspec.structs.replace
    programs = tuple(
        replace(
            program,
            functions=tuple(
                replace(function, ops=tuple(map(change, function.ops)))  # type: ignore[call-overload]
                for function in program.functions
            ),
        )
        for program in ir.programs
    )
    return replace(ir, programs=programs)


def _bind(op: Op) -> Op:
    group, index = GROUPS.get(op.id, (None, 0))
    name = "linear_group" if group else op.operator
    binding = KernelBinding(
        kernel_id=f"{name}_xla",
        function=name,
        group=group,
        results=(index,) if group else tuple(range(len(op.results))),
        contract_id="f32",
    )
    return msgspec.structs.replace(op, group=group, kernel=binding)


def levels(capture: tuple[str, ...] = ()) -> Levels:
    """Return the toy, lowered."""
    build = with_kernels(toy(capture))
    graph = lower_build_to_graph(build)
    lowered = lower_graph_to_lowered(graph)
    return Levels(build, graph, lowered, lower_lowered_to_call(lowered))
