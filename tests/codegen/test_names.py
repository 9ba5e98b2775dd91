import msgspec

from cke.codegen.names import Names, base_name, kernel_names
from tests.codegen.levels import levels


def test_the_short_name_is_the_last_part() -> None:
    assert base_name("attention.q.2") == "q"
    assert base_name("attention.return") == "attention"
    assert base_name("return") == "output"
    assert base_name("mlp.lambda") == "lambda_"


def test_no_name_holds_two_values_that_are_read_later() -> None:
    function = levels(("*",)).calls.programs[0].functions[1]
    names = Names(function, set())
    for index, call in enumerate(function.calls):
        holders: dict[str, str] = {}
        bound = {edge.name for before in function.calls[:index] for edge in before.results}
        bound |= {parameter.name for parameter in function.parameters}
        later = [argument for after in function.calls[index:] for argument in after.arguments]
        for argument in later:
            if argument.source == "edge" and argument.name in bound:
                name = names[argument.name or ""]
                assert holders.setdefault(name, argument.name or "") == argument.name
        names.bind(call, index)


def test_two_results_of_one_call_never_share_a_name() -> None:
    function = levels().calls.programs[0].functions[1]
    call = function.calls[1]
    twins = tuple(
        msgspec.structs.replace(edge, name=f"attention.{index}.same.{index}")
        for index, edge in enumerate(call.results)
    )
    targets = Names(function, set()).bind(msgspec.structs.replace(call, results=twins), 1)
    assert targets == ["same", "same_2", "same_3"]


def test_two_kernels_of_one_function_name_are_told_apart_by_id() -> None:
    program = levels().calls.programs[0]
    layer = program.functions[1]
    other = msgspec.structs.replace(layer.calls[0], kernel_id="rms_norm_pallas")
    changed = msgspec.structs.replace(layer, calls=(other, *layer.calls[1:]))
    functions = (program.functions[0], changed, program.functions[2])
    names = kernel_names(msgspec.structs.replace(program, functions=functions))
    assert names["rms_norm_pallas", "rms_norm"] == "rms_norm_pallas"
    assert names["rms_norm", "rms_norm"] == "rms_norm"
    assert names["rope", "rope"] == "rope"
