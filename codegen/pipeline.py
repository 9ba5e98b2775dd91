"""The lowering pipeline as one tuple: every pass, and the verifier of the level that it gives."""

from collections.abc import Callable
from typing import Any

from cke.codegen.build_ir import BuildIR
from cke.codegen.levels import Levels
from cke.codegen.lowered_ir import LoweredIR
from cke.codegen.passes.choose_fusion_groups import choose_fusion_groups
from cke.codegen.passes.drop_dead_results import drop_dead_results, refuse_unread_weights
from cke.codegen.passes.lower_build_to_graph import lower_build_to_graph
from cke.codegen.passes.lower_graph_to_lowered import lower_graph_to_lowered
from cke.codegen.passes.lower_lowered_to_call import lower_lowered_to_call
from cke.codegen.passes.resolve_kernels import resolve_kernels
from cke.codegen.verify.build import verify_build
from cke.codegen.verify.call import verify_call
from cke.codegen.verify.graph import verify_graph
from cke.codegen.verify.lowered import verify_lowered
from cke.schemas.call_ir import CallIR
from cke.schemas.graph_ir import GraphIR

Pass = tuple[Callable[[Any], Any], Callable[[Any], None]]

PIPELINE: tuple[Pass, ...] = (
    (drop_dead_results, verify_build),
    (choose_fusion_groups, verify_build),
    (resolve_kernels, verify_build),
    (lower_build_to_graph, verify_graph),
    (lower_graph_to_lowered, verify_lowered),
    (lower_lowered_to_call, verify_call),
)


def lower(ir: BuildIR) -> Levels:
    """Lower a BuildIR to calls, verifying each level; a weight that nothing reads is CKE573."""
    refuse_unread_weights(ir)
    verify_build(ir)
    levels: dict[type, Any] = {BuildIR: ir}
    current: Any = ir
    for transform, verify in PIPELINE:
        current = transform(current)
        verify(current)
        levels[type(current)] = current
    return Levels(levels[BuildIR], levels[GraphIR], levels[LoweredIR], levels[CallIR])
