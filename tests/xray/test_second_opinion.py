"""A verdict on the circuit asks for a second oracle; the second may turn it on the first."""

import shutil
from pathlib import Path

import msgspec
import pytest

from cke.oracles.gguf_writer import write_gguf
from cke.oracles.open import oracles_at_hand
from cke.schemas.diagnosis import Diagnosis
from cke.xray.diagnose import diagnose
from tests.models import TinyModel
from tests.xray.interpreted import REQUEST, Interpreted, Oracle, Place

pytestmark = [pytest.mark.oracle_torch, pytest.mark.slow, pytest.mark.contract("XRAY-35")]
LIE: Place = (1, "add", 0)
UPSTREAM: Place = (0, "mlp.down_proj", 0)
REPRODUCE = "cke xray --model m --oracle reference --out out"


def _oracle(sides: tuple[Interpreted, Oracle], *places: Place) -> Oracle:
    oracle = Oracle(sides[1].model)
    oracle.dtype, oracle.places, oracle.others = "f64", places, ("pytorch",)
    return oracle


def _diagnosed(
    sides: tuple[Interpreted, Oracle], oracle: Oracle, out: Path, second: Diagnosis | None = None
) -> Diagnosis:
    sides[0].places = ()
    shutil.rmtree(out / "rounds", ignore_errors=True)
    return diagnose(
        sides[0], oracle, REQUEST, out / "rounds", reproduce=REPRODUCE, second=second,
        second_sha256=None if second is None else "0" * 64,
    )  # fmt: skip


def _second(sides: tuple[Interpreted, Oracle], out: Path, *places: Place) -> Diagnosis:
    """Return the report of another backend, which is right but at some places."""
    report = _diagnosed(sides, _oracle(sides, *places), out)
    return msgspec.structs.replace(report, oracle={**report.oracle, "producer": "pytorch"})


def _owned(report: Diagnosis) -> tuple[str | None, str | None, str | None]:
    found = report.first_divergence
    assert found is not None
    return found.checkpoint_id, found.failure_class, found.fix_owner


EDGE = "layer.1.post_attention_residual"
CIRCUIT = (EDGE, "CIRCUIT_SEMANTICS_DIVERGENCE", "circuit")


def test_a_verdict_on_the_circuit_names_the_command_of_a_second_opinion(
    sides: tuple[Interpreted, Oracle], tmp_path: Path
) -> None:
    first = _diagnosed(sides, _oracle(sides, LIE), tmp_path)
    assert (first.status, _owned(first)) == ("complete", CIRCUIT)
    probe = first.next_probe
    assert probe is not None
    assert probe.question == ("whether pytorch says so too: the verdict rests on reference alone")
    folder = tmp_path / "second-pytorch"
    assert probe.command == (
        f"cke xray --model m --oracle pytorch --out {folder}; "
        f"{REPRODUCE} --second-report {folder}/report.json"
    )


def test_a_second_oracle_that_sides_with_the_subject_turns_it_on_the_first(
    sides: tuple[Interpreted, Oracle], tmp_path: Path
) -> None:
    second = _second(sides, tmp_path / "second")
    assert second.verdict == "pass_within_gate"
    report = _diagnosed(sides, _oracle(sides, LIE), tmp_path, second)
    assert _owned(report) == (EDGE, "REFERENCE_DEFECT", "reference_adapter")
    assert report.next_probe is None
    assert report.second_report is not None


def test_a_second_oracle_that_sides_with_the_first_leaves_it_with_the_circuit(
    sides: tuple[Interpreted, Oracle], tmp_path: Path
) -> None:
    second = _second(sides, tmp_path / "second", LIE)
    report = _diagnosed(sides, _oracle(sides, LIE), tmp_path, second)
    assert _owned(report) == CIRCUIT
    assert report.next_probe is None
    assert report.first_divergence is not None
    assert any("differs from the subject too" in line for line in report.first_divergence.because)


def test_a_second_oracle_that_went_wrong_before_the_edge_says_nothing_of_it(
    sides: tuple[Interpreted, Oracle], tmp_path: Path
) -> None:
    second = _second(sides, tmp_path / "second", UPSTREAM)
    report = _diagnosed(sides, _oracle(sides, LIE), tmp_path, second)
    assert _owned(report) == CIRCUIT
    assert report.first_divergence is not None
    last = report.first_divergence.because[-1]
    assert last == "the second oracle (pytorch) diverges at layer.0.mlp.mlp_down_projection first"


def test_a_report_of_other_tokens_or_of_the_same_oracle_is_left_aside(
    sides: tuple[Interpreted, Oracle], tmp_path: Path
) -> None:
    honest = _second(sides, tmp_path / "second")
    other = msgspec.structs.replace(honest, subject={**honest.subject, "tokens_sha256": "x"})
    same = msgspec.structs.replace(honest, oracle={**honest.oracle, "producer": "reference"})
    told = {"tokens": (other, "its subject has another `tokens_sha256`")}
    told["oracle"] = (same, "it is of the same oracle, reference")
    for second, why in told.values():
        report = _diagnosed(sides, _oracle(sides, LIE), tmp_path, second)
        assert _owned(report) == CIRCUIT
        assert report.first_divergence is not None
        assert report.first_divergence.because[-1] == f"the second report was left aside: {why}"


def test_the_reference_is_no_second_opinion_on_the_circuit_that_it_reads(
    sides: tuple[Interpreted, Oracle], tmp_path: Path
) -> None:
    honest = _second(sides, tmp_path / "second")
    itself = msgspec.structs.replace(honest, oracle={**honest.oracle, "producer": "reference"})
    first = _oracle(sides, LIE)
    first.name = "pytorch"
    report = _diagnosed(sides, first, tmp_path, itself)
    assert report.first_divergence is not None
    assert report.first_divergence.failure_class != "REFERENCE_DEFECT"


def test_a_verdict_that_no_other_oracle_can_check_asks_nothing(
    sides: tuple[Interpreted, Oracle], tmp_path: Path
) -> None:
    oracle = _oracle(sides, LIE)
    oracle.others = ()
    report = _diagnosed(sides, oracle, tmp_path)
    assert (_owned(report), report.next_probe) == (CIRCUIT, None)


@pytest.mark.oracle_llamacpp
def test_oracles_at_hand_are_installed_and_answer_for_the_family(tiny_model: TinyModel) -> None:
    assert oracles_at_hand(tiny_model("llama")) == ("pytorch", "llamacpp")
    assert oracles_at_hand(tiny_model("gemma2")) == ("pytorch",)
    assert oracles_at_hand(tiny_model("phi3")) == ("pytorch",)
    assert oracles_at_hand(tiny_model("dinov2")) == ("pytorch",)


@pytest.mark.oracle_llamacpp
def test_an_oracle_is_at_hand_only_for_what_it_can_run(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    assert oracles_at_hand(tiny_model("mistral"), 4) == ("pytorch", "llamacpp")
    assert oracles_at_hand(tiny_model("mistral"), 400) == ("pytorch",)
    dense = write_gguf(tiny_model("llama"), tmp_path / "dense.gguf")
    assert oracles_at_hand(dense) == ("pytorch", "llamacpp")
    experts = write_gguf(tiny_model("mixtral"), tmp_path / "experts.gguf")
    assert oracles_at_hand(experts) == ("llamacpp",)
    other = tmp_path / "other.gguf"
    other.write_bytes(dense.read_bytes().replace(b"llama", b"falco"))
    assert oracles_at_hand(other) == ()
