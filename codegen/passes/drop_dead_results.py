"""BuildIR → BuildIR: mark results that nothing reads, drop ops that only make such results."""

from collections.abc import Iterable

import msgspec

from cke.codegen.build_ir import BuildIR, Function, Op
from cke.codegen.checkpoints import is_captured
from cke.errors import CkeError, Diagnostic, Note
from cke.schemas.ir import Edge

HELP = "use it in an equation, or remove its part and name the tensors under `ignore tensors`"


def drop_dead_results(ir: BuildIR) -> BuildIR:
    """Return the IR with `live` set; an op that no result of its function needs is gone.

    A capture keeps a result of an op that runs anyway. It brings no op back: what is captured is
    the program that runs without captures.
    """
    programs = tuple(
        msgspec.structs.replace(
            program,
            functions=tuple(_drop(function, ir.capture) for function in program.functions),
        )
        for program in ir.programs
    )
    return msgspec.structs.replace(ir, programs=programs)


def refuse_unread_weights(ir: BuildIR) -> None:
    """Raise CKE573 at the first weight that only makes values which nothing reads."""
    for program, left in zip(ir.programs, drop_dead_results(ir).programs, strict=True):
        for function, kept in zip(program.functions, left.functions, strict=True):
            read = {name for op in kept.ops for name in (*op.weights, *op.inputs)}
            unread = next((w.name for w in function.weights if w.name not in read), None)
            if unread is None:
                continue
            op = next(op for op in function.ops if unread in (*op.weights, *op.inputs))
            raise CkeError(
                Diagnostic(
                    code="CKE573",
                    message=f"expected the weight `{unread}` to reach a result, got `{op.id}`, "
                    "which makes nothing that is read",
                    span=op.span,
                    notes=(Note(HELP, label="help"),),
                )
            )


def _drop(function: Function, capture: tuple[str, ...]) -> Function:
    read = {*function.results}
    shown = {alias.alias_of or "" for alias in function.aliases if is_captured(alias, capture)}
    kept: list[Op] = []
    for op in reversed(function.ops):
        if op.state is None and not any(edge.name in read for edge in op.results):
            continue
        edges = tuple(_marked(edge, read | shown, capture) for edge in op.results)
        kept.append(msgspec.structs.replace(op, results=edges))
        read.update(name for name in op.inputs if name is not None)
    ops = tuple(reversed(kept))
    named = {*_names(ops), *(parameter.name for parameter in function.parameters)}
    return msgspec.structs.replace(
        function,
        ops=ops,
        aliases=tuple(alias for alias in function.aliases if alias.alias_of in named),
    )


def _marked(edge: Edge, read: set[str], capture: tuple[str, ...]) -> Edge:
    return msgspec.structs.replace(edge, live=edge.name in read or is_captured(edge, capture))


def _names(ops: Iterable[Op]) -> set[str]:
    return {edge.name for op in ops for edge in op.results}
