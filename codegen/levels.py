"""A circuit at every level, as the pipeline gives it."""

import msgspec

from cke.codegen.build_ir import BuildIR
from cke.codegen.lowered_ir import LoweredIR
from cke.schemas.call_ir import CallIR
from cke.schemas.graph_ir import GraphIR


class Levels(msgspec.Struct, frozen=True):
    """The four levels; `build` has its kernels resolved."""

    build: BuildIR
    graph: GraphIR
    lowered: LoweredIR
    calls: CallIR
