"""Merging: the child wins by key, types are kept, origins stay, and expansion stands alone."""

from pathlib import Path

import pytest

from cke.dsl.circuit import Circuit
from cke.dsl.expand import expand
from cke.dsl.library import library_circuits
from cke.dsl.resolve import load_circuit
from cke.dsl.syntax import erase_spans


def saved(tmp_path: Path, text: str, name: str = "x") -> Path:
    path = tmp_path / f"{name}.circuit"
    path.write_text(text, "utf-8")
    return path


def test_rebind_keeps_the_type_and_its_own_span() -> None:
    row = load_circuit("qwen3").config["qkv_bias"]
    assert [atom.name for atom in row.type.alternatives] == ["bool"]
    assert row.span.file == "circuits/qwen3.circuit"


def test_parents_sources_and_own_files_follow_the_lineage() -> None:
    circuit = load_circuit("qwen3_moe")
    assert circuit.parents == ("qwen3@1", "qwen2@1", "llama@1")
    assert circuit.own_files[-1] == circuit.file == "circuits/qwen3_moe.circuit"
    assert set(circuit.sources) == set(circuit.files)
    assert all(len(digest) == 64 for digest in circuit.sources.values())


def test_match_does_not_inherit() -> None:
    names = [item.name for row in load_circuit("qwen3").match for item in row.names]
    assert "LlamaForCausalLM" not in names


def test_own_part_rows_stand_before_inherited_ones(tmp_path: Path) -> None:
    parent = (
        'circuit p@1 from llama@1\nparts of gated_mlp:\n  up_proj   hf "a"\n  gate_proj   hf "b"\n'
    )
    saved(tmp_path, parent, "p")
    child = 'circuit x@1 from p@1\nparts of gated_mlp:\n  up_proj   hf "c"\n'
    circuit = load_circuit(saved(tmp_path, child))
    rows = circuit.part_rows["gated_mlp"]
    assert [row.clauses[0].names[0].value for row in rows] == ["c", "b"]  # type: ignore[union-attr]


def test_block_of_the_same_signature_replaces_the_used_one() -> None:
    assert load_circuit("deepseek_v3").blocks["attention"].span.file.endswith("deepseek_v3.circuit")


def test_file_beside_the_circuit_wins_over_the_library(tmp_path: Path) -> None:
    saved(tmp_path, "circuit llama@1 from qwen2@1\n", "llama")
    assert load_circuit(saved(tmp_path, "circuit x@1 from llama@1\n")).parents[1] == "qwen2@1"


def test_editor_text_stands_for_the_file_on_disk(tmp_path: Path) -> None:
    path = saved(tmp_path, "circuit x@1 from llama@1\n")
    assert load_circuit(path, b"circuit y@2 from llama@1\n").name == "y"


@pytest.mark.parametrize("name", library_circuits())
def test_expansion_is_the_same_circuit(name: str, tmp_path: Path) -> None:
    circuit = load_circuit(name)
    text = expand(circuit)
    assert f"# {circuit.file}:" in text
    again = load_circuit(saved(tmp_path, text, "expanded"))
    assert meaning(again) == meaning(circuit)


def meaning(circuit: Circuit) -> list[object]:
    """Return what an expansion must keep: all but files, and blocks that nothing names."""
    return [
        (circuit.name, circuit.version, circuit.title, circuit.entry, circuit.index, circuit.axis),
        {name: erase_spans(bind) for name, bind in circuit.config.items()},
        {name: erase_spans(bind) for name, bind in circuit.schedule_rows.items()},
        sorted(circuit.ignored),
        [erase_spans(row) for row in (*circuit.match, *circuit.numerics, *circuit.taxonomies)],
        erase_spans(circuit.blocks[circuit.entry]),
        [pattern.value for pattern in circuit.ignored_tensors],
    ]
