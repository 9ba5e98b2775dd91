"""Oracles that lie are caught by measurement; honest ones are not accused."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from cke.oracles.base import Array, Sink
from cke.oracles.facts import FactFinding, check_facts, loaded_dtypes, measured_version
from cke.runtime.records import record_of, split_id
from cke.runtime.schedule import CaptureRequest
from cke.runtime.trace_reader import TraceFolder, read_trace
from cke.runtime.trace_writer import TraceWriter
from cke.schemas.trace import Body, Record
from tests.models import TinyModel
from tests.xray.synthetic import body_of, write_trace

pytestmark = pytest.mark.oracle_torch

# Four tokens and four heads: shapes alone cannot tell these axes apart.
REQUEST = CaptureRequest(tokens=((5, 9, 2, 7),), forced=((3,),))


class Retold:
    """A sink that changes what an oracle says of its captures."""

    def __init__(self, sink: Sink, change: Callable[[Record, Array], tuple[Record, Array]]) -> None:
        self.sink = sink
        self.change = change

    def add(self, record: Record, array: Array) -> None:
        self.sink.add(*self.change(record, array))


def _oracle(folder: Path, dtype: str = "f32") -> Any:
    from cke.oracles.pytorch import PyTorchOracle

    return PyTorchOracle(folder, dtype)


def _trace(
    oracle: Any,
    out: Path,
    change: Callable[[Record, Array], tuple[Record, Array]] = lambda record, array: (record, array),
    declare: Callable[[Body], Body] = lambda body: body,
) -> TraceFolder:
    with TraceWriter(out) as writer:
        writer.close(declare(oracle.capture(REQUEST, Retold(writer, change))))
    return read_trace(out)


def _tables(oracle: Any) -> list[Array]:
    return [array for _, array in oracle.weights() if array.ndim == 2]


def _only(findings: tuple[FactFinding, ...]) -> FactFinding:
    assert len(findings) == 1, [str(item) for item in findings]
    return findings[0]


def _producer(body: Body, **changes: Any) -> Body:
    producer = msgspec.structs.replace(body.producer, **changes)
    return msgspec.structs.replace(body, producer=producer)


@pytest.mark.contract("XRAY-8")
@pytest.mark.parametrize(
    ("family", "dtype"),
    [("llama", "f32"), ("gemma3", "bf16"), ("gpt2", "f32"), ("mixtral", "bf16")],
)
def test_an_honest_oracle_is_measured_and_not_accused(
    family: str, dtype: str, tiny_model: TinyModel, tmp_path: Path
) -> None:
    oracle = _oracle(tiny_model(family), dtype)
    facts = check_facts(
        _trace(oracle, tmp_path / "trace"),
        tables=_tables(oracle),
        version=measured_version("pytorch"),
        loaded=loaded_dtypes(oracle.weights()),
    )
    assert [str(item) for item in facts.findings] == []
    wanted = {"tokens", "version", "dtype", "shape", "axes"}
    assert all(facts.checked[fact] > 0 for fact in wanted), facts.checked


@pytest.mark.contract("XRAY-8")
def test_values_of_a_narrow_run_told_as_wide_are_caught_by_their_bits(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    def widen(record: Record, array: Array) -> tuple[Record, Array]:
        if record.dtype != "bf16":
            return record, array
        name, layer = split_id(record.checkpoint_id)
        wide = array.astype(np.float32)
        told = record_of(
            wide,
            name=name,
            layer=layer,
            phase=record.phase,
            segment=record.segment,
            axes=record.axes,
            role=record.role,
            order=record.order,
        )
        return told, wide

    def declare(body: Body) -> Body:
        return _producer(body, dtype="f32", weight_dtypes={"float32": 30})

    oracle = _oracle(tiny_model("llama"), "bf16")
    side = _trace(oracle, tmp_path / "trace", widen, declare)
    finding = _only(check_facts(side).findings)
    assert finding.failure_class == "DIAGNOSTIC_EXPORT_MAPPING"
    assert (finding.fact, finding.declared, finding.measured) == ("dtype", "fp32", "bf16")
    assert finding.checkpoint_id == "layer.0.attention_norm_output"
    loaded = check_facts(side, loaded=loaded_dtypes(oracle.weights())).findings[0]
    assert (loaded.fact, loaded.declared) == ("dtype", "{'float32': 30}")
    assert "bfloat16" in loaded.measured


@pytest.mark.contract("XRAY-8")
def test_one_cache_kept_narrower_than_declared_is_caught(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    def rounded(record: Record, array: Array) -> tuple[Record, Array]:
        if record.role != "stored_key":
            return record, array
        half = array.astype(np.float16).astype(np.float32)
        like = record_of(
            half,
            name="attention.kv_append",
            layer=record.layer,
            phase=record.phase,
            segment=record.segment,
            axes=record.axes,
        )
        return msgspec.structs.replace(record, sha256=like.sha256, summary=like.summary), half

    side = _trace(_oracle(tiny_model("llama")), tmp_path / "trace", rounded)
    finding = _only(check_facts(side).findings)
    assert (finding.measured, finding.role) == ("fp16", "stored_key")


@pytest.mark.contract("XRAY-8")
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("layer.1.attention.rope_query_output", ("B", "H", "T", "E")),
        ("layer.1.attention.attention_probabilities", ("B", "H", "S", "T")),
        ("layer.0.attention.attention_context", ("B", "H", "T", "E")),
    ],
)
def test_exchanged_axes_of_equal_size_are_caught_by_what_the_tensor_must_satisfy(
    name: str, told: tuple[str, ...], tiny_model: TinyModel, tmp_path: Path
) -> None:
    def exchange(record: Record, array: Array) -> tuple[Record, Array]:
        if record.checkpoint_id != name or record.segment != 0:
            return record, array
        return msgspec.structs.replace(record, axes=told), array

    side = _trace(_oracle(tiny_model("llama")), tmp_path / "trace", exchange)
    finding = _only(check_facts(side).findings)
    assert (finding.fact, finding.checkpoint_id) == ("axes", name)
    assert finding.failure_class == "DIAGNOSTIC_EXPORT_MAPPING"
    assert finding.declared == " ".join(told)
    assert finding.measured != finding.declared


@pytest.mark.contract("XRAY-8")
def test_exchanged_axes_of_unequal_size_are_caught_by_the_shape(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    def exchange(record: Record, array: Array) -> tuple[Record, Array]:
        if record.checkpoint_id != "layer.2.attention.rope_key_output" or record.segment != 0:
            return record, array
        return msgspec.structs.replace(record, axes=("B", "K", "T", "E")), array

    side = _trace(_oracle(tiny_model("llama")), tmp_path / "trace", exchange)
    finding = check_facts(side).findings[0]
    assert (finding.fact, finding.checkpoint_id) == ("axes", "layer.2.attention.rope_key_output")


@pytest.mark.contract("XRAY-8")
def test_a_version_that_is_not_the_imported_one_is_caught(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    oracle = _oracle(tiny_model("llama"))
    side = _trace(oracle, tmp_path / "t", declare=lambda body: _producer(body, version="4.0.0"))
    finding = _only(check_facts(side, version=measured_version("pytorch")).findings)
    assert (finding.failure_class, finding.fact) == ("IDENTITY_MISMATCH", "version")
    assert (finding.declared, finding.measured) == ("4.0.0", measured_version("pytorch"))


@pytest.mark.contract("XRAY-8")
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_tokens_that_were_not_those_declared_are_read_off_the_embedding(
    family: str, tiny_model: TinyModel, tmp_path: Path
) -> None:
    from cke.oracles.pytorch import PyTorchOracle

    class Shifted(PyTorchOracle):
        def _forwards(self, segments: Any, pixels: Any = None, begin: Any = None) -> Iterator[Any]:
            fed = [
                msgspec.structs.replace(
                    segment, tokens=tuple(tuple(t + 1 for t in row) for row in segment.tokens)
                )
                for segment in segments
            ]
            yield from super()._forwards(fed, pixels, begin)

    oracle = Shifted(tiny_model(family))
    side = _trace(oracle, tmp_path / "trace")
    first = check_facts(side, tables=_tables(oracle)).findings[0]
    assert (first.failure_class, first.declared) == ("INPUT_TOKEN_MISMATCH", "5 9 2 7")
    assert first.checkpoint_id == "embedding"
    if family != "gpt2":
        assert first.measured == "6 10 3 8"


def test_a_digest_that_is_not_that_of_the_scheduled_tokens_is_caught(tmp_path: Path) -> None:
    body = body_of(REQUEST)
    lying = msgspec.structs.replace(
        body, identity=msgspec.structs.replace(body.identity, tokens_sha256="0" * 64)
    )
    side = write_trace(tmp_path / "trace", REQUEST, [], body=lying)
    finding = _only(check_facts(side).findings)
    assert (finding.failure_class, finding.declared) == ("INPUT_TOKEN_MISMATCH", "0" * 12)


def test_one_embedding_for_two_tokens_is_caught_without_the_weights(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((1, 4, 8)).astype(np.float32)
    rows[0, 3] = rows[0, 1]
    side = write_trace(tmp_path / "trace", REQUEST, [("embedding", ("B", "T", "D"), rows)])
    finding = _only(check_facts(side).findings)
    assert (finding.declared, finding.measured) == ("9 and 7", "one token twice")


def test_more_layers_than_the_model_has_are_caught(tmp_path: Path) -> None:
    values = [("layer.4.layer_output", ("B", "T", "D"), np.ones((1, 4, 8), np.float32))]
    body = body_of(REQUEST, facts={"layers": 3, "D": 8})
    finding = _only(check_facts(write_trace(tmp_path / "t", REQUEST, values, body=body)).findings)
    assert (finding.fact, finding.declared, finding.measured) == ("layers", "3", "5")


@pytest.mark.oracle_torch
def test_rows_behind_a_norm_say_nothing_of_the_tokens(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    oracle = _oracle(tiny_model("bert"))
    request = msgspec.structs.replace(REQUEST, forced=(), edges=frozenset({"embedding"}))
    with TraceWriter(tmp_path / "trace") as writer:
        writer.close(oracle.capture(request, writer))
    assert check_facts(read_trace(tmp_path / "trace"), tables=_tables(oracle)).findings == ()
