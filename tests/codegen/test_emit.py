import ast
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from cke.codegen.emit import emit, line_table
from cke.codegen.pipeline import lower
from cke.schemas.call_ir import CallIR
from cke.schemas.ir import Parameter, TensorType
from tests.codegen.levels import levels
from tests.codegen.toy import replace_layer_op, toy

CAPTURES = ((), ("*",), ("attention.rope_*", "layer_output"))


def text(capture: tuple[str, ...] = (), module: str = "decode.py") -> str:
    return emit(msgspec.json.encode(levels(capture).calls))[module]


@pytest.mark.parametrize("capture", CAPTURES)
def test_generated_code_is_a_fixed_point_of_ruff(
    capture: tuple[str, ...], tmp_path: Path, repository: Path
) -> None:
    for name, content in emit(msgspec.json.encode(levels(capture).calls)).items():
        (tmp_path / name).write_text(content)
    ruff = [sys.executable, "-m", "ruff"]
    config = ["--config", str(repository / "pyproject.toml"), str(tmp_path)]
    checked = subprocess.run([*ruff, "check", *config], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
    formatted = subprocess.run([*ruff, "format", "--diff", *config], capture_output=True, text=True)
    assert formatted.returncode == 0, formatted.stdout


def test_emission_is_deterministic() -> None:
    assert text(("*",)) == text(("*",))


def test_every_call_ends_with_its_circuit_line() -> None:
    layer = levels().calls.programs[1].functions[1]
    places = set(line_table(text()).values())
    assert {
        f"{call.span.file}:{call.span.line}" for call in layer.calls if len(call.members) == 1
    } <= places
    assert "circuits/blocks/decoder.circuit:39-41" in places


def test_the_line_table_covers_every_line_of_a_call() -> None:
    content = text()
    table = line_table(content)
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            name = getattr(node.value.func, "id", "")
            if name in ("rope", "sdpa", "linear", "rms_norm"):
                assert set(range(node.lineno, (node.end_lineno or 0) + 1)) <= set(table)


def test_every_live_edge_has_a_named_scope() -> None:
    content = text()
    for function in levels().calls.programs[1].functions:
        for call in function.calls:
            for scope in call.scopes:
                assert f'named_scope("{scope}")' in content


def test_a_dead_result_is_not_bound() -> None:
    assert "_, _, y = sdpa(" in text()


def test_captured_edges_are_returned_by_checkpoint_name() -> None:
    content = text(("attention.rope_*",))
    assert 'captured["attention.rope_query_output"] = q' in content
    assert 'return output, {"attention.kv": kv}, captured' in content
    assert 'captured[f"{name}.{key}"] = edge' in content


def test_code_without_capture_mentions_none() -> None:
    assert "captured" not in text()


def test_emission_needs_neither_the_language_nor_the_registry(tmp_path: Path) -> None:
    source = tmp_path / "calls.json"
    source.write_bytes(msgspec.json.encode(levels().calls))
    program = (
        "import sys\n"
        "for name in ('cke.dsl', 'cke.kernel_registry', 'lark', 'jax', 'numpy'):\n"
        "    sys.modules[name] = None\n"
        "from pathlib import Path\n"
        "from cke.codegen.emit import emit\n"
        "sys.stdout.write(emit(Path(sys.argv[1]).read_bytes())['decode.py'])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(source)],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == text()


def with_scalars() -> CallIR:
    """The toy's calls with the scale of attention as an argument that differs between layers."""
    replace = msgspec.structs.replace
    build = replace_layer_op(toy(), "attention.sdpa", scalars={"scale": "attention.sdpa.scale"})
    scalar = Parameter(name="attention.sdpa.scale", type=TensorType(axes=(), shape=(), dtype="f32"))
    programs = []
    for program in build.programs:
        embed, layer, head = program.functions
        ops = tuple(
            replace(op, attributes={k: v for k, v in op.attributes.items() if k not in op.scalars})
            for op in layer.ops
        )
        steps = tuple(
            replace(step, scalars={scalar.name: 0.5 + step.layer} if step.layer is not None else {})
            for step in program.steps
        )
        functions = (embed, replace(layer, ops=ops, scalars=(scalar,)), head)
        programs.append(replace(program, functions=functions, steps=steps))
    return lower(replace(build, programs=tuple(programs))).calls


def test_scalars_that_differ_between_layers_are_arguments(tmp_path: Path, repository: Path) -> None:
    content = emit(msgspec.json.encode(with_scalars()))["decode.py"]
    assert "*, attention_sdpa_scale: Array | float" in content
    assert "scale=attention_sdpa_scale" in content
    assert (
        'SCALARS = (\n    {"attention_sdpa_scale": 0.5},\n    {"attention_sdpa_scale": 1.5},\n)'
        in (content)
    )
    assert "**SCALARS[index]" in content
    (tmp_path / "__init__.py").write_text('"""Toy."""\n')
    (tmp_path / "decode.py").write_text(content)
    config = ["--config", str(repository / "pyproject.toml"), str(tmp_path)]
    for command in (["check"], ["format", "--diff"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, *config], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout


def test_a_long_title_is_a_paragraph_of_the_docstring() -> None:
    calls = msgspec.structs.replace(levels().calls, title="a long title " * 9)
    for content in emit(msgspec.json.encode(calls)).values():
        assert content.startswith('"""The circuit toy@1.\n\na long title a long')
        assert max(map(len, content.splitlines())) <= 100
