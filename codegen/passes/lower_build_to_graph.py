"""BuildIR → GraphIR: keep the dataflow and the chosen kernels, leave the reasons behind."""

from cke.codegen import build_ir
from cke.schemas.graph_ir import Function, GraphIR, Op, Program


def lower_build_to_graph(ir: build_ir.BuildIR) -> GraphIR:
    """Return the dataflow of a BuildIR whose kernels are resolved."""
    return GraphIR(
        circuit=ir.circuit,
        version=ir.version,
        title=ir.title,
        file=ir.file,
        dtype=ir.dtype,
        dims=ir.dims,
        capture=ir.capture,
        programs=tuple(map(_lower_program, ir.programs)),
    )


def _lower_program(program: build_ir.Program) -> Program:
    return Program(
        phase=program.phase,
        inputs=program.inputs,
        functions=tuple(map(_lower_function, program.functions)),
        steps=program.steps,
        outputs=program.outputs,
    )


def _lower_function(function: build_ir.Function) -> Function:
    return Function(
        name=function.name,
        parameters=function.parameters,
        weights=function.weights,
        scalars=function.scalars,
        state=function.state,
        ops=tuple(map(_lower_op, function.ops)),
        results=function.results,
        layers=function.layers,
        aliases=function.aliases,
        block=function.block,
        span=function.span,
    )


def _lower_op(op: build_ir.Op) -> Op:
    assert op.kernel is not None, f"`{op.id}` reaches GraphIR without a kernel"
    return Op(
        id=op.id,
        operator=op.operator,
        inputs=op.inputs,
        weights=op.weights,
        state=op.state,
        attributes=op.attributes,
        layout=op.layout,
        results=op.results,
        contract=op.contract,
        kernel=op.kernel,
        span=op.span,
        scalars=op.scalars,
    )
