"""Circuit and model → BuildIR without kernels: config, elaboration, layer kinds, weight bindings.

One program per phase: prefill and decode when a block has state, else encode. Goal: the work does
not grow with the depth of the model, but for one binding per weight.
"""

from collections.abc import Iterator

import msgspec

from cke.codegen import build_ir
from cke.codegen.build_ir import BuildIR, Program
from cke.codegen.passes.bind_weights import Bound, bind_weights
from cke.codegen.passes.expand_schedule import Kind, expand_schedule
from cke.dsl.circuit import Circuit
from cke.dsl.elaborate import elaborate
from cke.dsl.elaborated import Elaboration, Op, Step
from cke.schemas import ir
from cke.schemas.ir import Parameter
from cke.schemas.manifest import Given
from cke.schemas.model_source import ModelSource


def instantiate(circuit: Circuit, source: ModelSource, dtype: str) -> BuildIR:
    """Return the circuit bound to a model's config and headers; every error of a stage at once."""
    elaboration, dims = elaborate(circuit, source, dtype)
    ignored = [text.value for text in circuit.ignored_tensors]
    bound = bind_weights(elaboration, source, ignored)
    kinds = expand_schedule(elaboration)
    stateful = any(kind.function.state for kind in kinds)
    phases = ("prefill", "decode") if stateful else ("encode",)
    program = _program(elaboration, kinds, bound)
    return BuildIR(
        circuit=circuit.name,
        version=circuit.version,
        title=circuit.title,
        file=circuit.file,
        parents=circuit.parents,
        sources=circuit.sources,
        dtype=dtype,
        dims=dims,
        capture=(),
        programs=tuple(msgspec.structs.replace(program, phase=phase) for phase in phases),
        bindings=bound.bindings,
        coverage=bound.coverage,
        givens=tuple(_givens(elaboration)),
    )


def _program(elaboration: Elaboration, kinds: tuple[Kind, ...], bound: Bound) -> Program:
    steps: dict[int, ir.Step] = {}
    for kind in kinds:
        for place in kind.steps:
            steps[place] = _step(elaboration.steps[place], kind, place, bound)
    return Program(
        phase="",
        inputs=elaboration.inputs,
        functions=tuple(_function(kind, elaboration) for kind in kinds),
        steps=tuple(steps[place] for place in sorted(steps)),
        outputs=elaboration.outputs,
    )


def _step(step: Step, kind: Kind, place: int, bound: Bound) -> ir.Step:
    prefix = kind.name if step.layer is None else f"layer.{step.layer}"
    return ir.Step(
        function=kind.name,
        layer=step.layer,
        arguments=step.arguments,
        results=step.results,
        weights=bound.weights[place],
        state={slot.name: f"{prefix}.{slot.name}" for slot in kind.function.state},
        scalars=kind.values[place],
    )


def _function(kind: Kind, elaboration: Elaboration) -> build_ir.Function:
    function = kind.function
    layers = (elaboration.steps[place].layer for place in kind.steps)
    return build_ir.Function(
        name=kind.name,
        parameters=function.parameters,
        weights=tuple(Parameter(name=use.name, type=use.type) for use in function.weights),
        scalars=kind.parameters,
        state=function.state,
        ops=tuple(_op(op, kind.scalars.get(op.id, {})) for op in function.ops),
        results=function.results,
        layers=tuple(layer for layer in layers if layer is not None),
        aliases=function.aliases,
        block=function.block,
        span=function.span,
    )


def _op(op: Op, scalars: dict[str, str]) -> build_ir.Op:
    fields = {name: getattr(op, name) for name in op.__struct_fields__}
    fields["attributes"] = {k: v for k, v in op.attributes.items() if k not in scalars}
    return build_ir.Op(**fields, scalars=scalars)


def _givens(elaboration: Elaboration) -> Iterator[Given]:
    """Yield the resolved givens; equal ones of several functions once, with all their layers."""
    found: dict[bytes, tuple[Given, list[int]]] = {}
    for step in elaboration.steps:
        for given in elaboration.functions[step.function].givens:
            key = msgspec.json.encode(given)
            place = found.setdefault(key, (given, []))
            if step.layer is not None:
                place[1].append(step.layer)
    for given, own in found.values():
        yield msgspec.structs.replace(given, layers=tuple(own))
