"""Sessions over a hand-written package: segmentation, batches, growth, drivers, compilations."""

import importlib.util
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest

from cke.errors import CkeError
from cke.runtime.drivers import XLA_OPTIONS, make_driver
from cke.runtime.placement import place_weights
from cke.runtime.sampling import Sampling
from cke.runtime.session import Session
from cke.runtime.tokens import check_phases

_SPEC = importlib.util.spec_from_file_location(
    "toy_package", Path(__file__).with_name("toy_package.py")
)
toy = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(toy)

TOKENS = np.random.default_rng(1).integers(0, toy.DIMS["V"], (2, 41)).astype(np.int32)


@cache
def driver_of(name, dtype):
    """One driver for all tests, so that each program compiles once."""
    package = toy.toy_package(dtype)
    weights = place_weights(
        package.calls.programs, toy.random_weights(dtype).__getitem__, toy.canonical
    )
    return make_driver(name, package, weights)


def session(driver="whole_step", batch=2, dtype="f32", **options):
    return Session(driver_of(driver, dtype), batch=batch, **options)


def all_logits(tokens=TOKENS, **options):
    return session(**options).prefill(tokens, logits="all")


@pytest.fixture(scope="module")
def oracle():
    """A plain loop over full attention, in NumPy: logits of every position of TOKENS."""
    return numpy_logits(TOKENS)


def numpy_logits(tokens):
    weights = {name: value.astype(np.float64) for name, value in toy.random_weights().items()}
    x = weights["embed.weight"][tokens]
    for index, window in ((0, toy.WINDOW), (1, None)):
        x = _numpy_layer(x, {k: weights[f"layer.{index}.{k}"] for k in _layer_keys()}, window)
    return _norm(x, weights["final.weight"]) @ weights["embed.weight"].T


def _layer_keys():
    return [*toy.LAYER_WEIGHTS, *toy.MEMBERS]


def _norm(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight


def _rotate(x):
    half = x.shape[-1] // 2
    angle = np.arange(x.shape[1])[:, None, None] * 10000.0 ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    turned = (a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle))
    return np.concatenate(turned, -1)


def _numpy_layer(x, w, window):
    h = _norm(x, w["attn_norm.weight"])
    q, k, v = (np.einsum("btd,ced->btce", h, w[f"attention.{name}_proj.weight"]) for name in "qkv")
    q, k = _rotate(q), _rotate(k)
    k, v = (np.repeat(each, toy.DIMS["H"] // toy.DIMS["K"], axis=2) for each in (k, v))
    scores = np.einsum("bthe,bshe->bhts", q, k) * toy.DIMS["E"] ** -0.5
    distance = np.arange(x.shape[1])[:, None] - np.arange(x.shape[1])[None, :]
    seen = (distance >= 0) & (distance < (window or 10**9))
    scores = np.where(seen, scores, -np.inf)
    probs = np.exp(scores - scores.max(-1, keepdims=True))
    probs /= probs.sum(-1, keepdims=True)
    y = np.einsum("bhts,bshe->bthe", probs, v)
    x = x + np.einsum("bthe,dhe->btd", y, w["attention.o_proj.weight"])
    h = _norm(x, w["mlp_norm.weight"])
    gate = h @ w["mlp.gate_proj.weight"].T
    up = h @ w["mlp.up_proj.weight"].T
    return x + (gate / (1 + np.exp(-gate)) * up) @ w["mlp.down_proj.weight"].T


def assert_close(got, expected):
    assert np.abs(np.asarray(got) - expected).max() / np.abs(expected).max() < 1e-5


@pytest.mark.parametrize("driver", ["whole_step", "per_layer", "eager"])
def test_prefill_gives_the_logits_of_every_position(driver, oracle):
    assert_close(all_logits(driver=driver), oracle)


def test_prefill_gives_the_last_position_by_default(oracle):
    assert_close(session().prefill(TOKENS), oracle[:, -1])


@pytest.mark.parametrize("cuts", [(1,), (5, 6, 20), (16, 32), tuple(range(1, 41))])
def test_any_segmentation_is_the_same_program(cuts, oracle):
    item = session()
    parts = np.split(TOKENS, cuts, axis=1)
    got = np.concatenate([item.prefill(part, logits="all") for part in parts], axis=1)
    assert_close(got, oracle)


def test_a_prompt_longer_than_a_segment_runs_in_segments(monkeypatch, oracle):
    monkeypatch.setattr("cke.runtime.session.SEGMENT", 16)
    assert_close(session().prefill(TOKENS), oracle[:, -1])
    assert_close(session().prefill(TOKENS, logits="all"), oracle)


def test_decode_continues_a_prefill(oracle):
    item = session()
    item.prefill(TOKENS[:, :30])
    for index in range(30, 41):
        assert_close(item.decode(TOKENS[:, index]), oracle[:, index])


def test_rows_of_unequal_length_do_not_touch_each_other(oracle):
    item = session()
    got = item.prefill([TOKENS[0, :7].tolist(), TOKENS[1, :19].tolist()])
    assert_close(got[0], oracle[0, 6])
    assert_close(got[1], oracle[1, 18])
    got = item.decode(np.array([TOKENS[0, 7], TOKENS[1, 19]]))
    assert_close(got[0], oracle[0, 7])
    assert_close(got[1], oracle[1, 19])


def test_a_row_without_a_token_keeps_its_state_and_its_last_logits(oracle):
    item = session()
    item.prefill(TOKENS[:, :9])
    got = item.prefill([[], TOKENS[1, 9:12].tolist()])
    assert_close(got[0], oracle[0, 8])
    assert_close(got[1], oracle[1, 11])
    assert item.lengths.tolist() == [9, 12]
    assert_close(item.prefill([TOKENS[0, 9:20].tolist(), []])[0], oracle[0, 19])


def test_explicit_positions_with_padding_anywhere(oracle):
    tokens = np.array([[9, *TOKENS[0, :5], 9], [*TOKENS[1, :7]]])
    positions = np.array([[-1, 0, 1, 2, 3, 4, -1], [0, 1, 2, 3, 4, 5, 6]])
    got = session().prefill(tokens, positions)
    assert_close(got[0], oracle[0, 4])
    assert_close(got[1], oracle[1, 6])


def test_caches_grow_and_a_ring_keeps_its_window(oracle):
    item = session()
    many = np.random.default_rng(2).integers(0, toy.DIMS["V"], (2, 300)).astype(np.int32)
    expected = numpy_logits(many)
    cuts = (3, 100, 140, 141, 142, 290)
    parts = np.split(many, cuts, axis=1)
    got = np.concatenate([item.prefill(part, logits="all") for part in parts], axis=1)
    assert_close(got, expected)
    full = item.state["layer.1"]["attention.kv"]["k"].shape[1]
    ring = item.state["layer.0"]["attention.kv"]["k"].shape[1]
    assert (full, ring) == (384, 256)


def test_growing_a_ring_moves_each_row_to_its_place():
    item = session()
    many = np.random.default_rng(2).integers(0, toy.DIMS["V"], (2, 700)).astype(np.int32)
    for index in range(0, 400, 16):
        item.prefill(many[:, index : index + 16])
    got = item.prefill(many[:, 400:], logits="all")
    assert_close(got, numpy_logits(many)[:, 400:])


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("width", [1, 16, 41])
def test_per_layer_and_whole_step_give_the_same_bits(dtype, width):
    runs = [
        session(driver=driver, dtype=dtype).prefill(TOKENS[:, :width], logits="all")
        for driver in ("per_layer", "whole_step")
    ]
    assert runs[0].dtype == (jnp.bfloat16 if dtype == "bf16" else np.float32)
    assert runs[0].tobytes() == runs[1].tobytes()


def test_the_head_on_one_position_follows_the_drivers_bits():
    runs = [session(driver=driver).prefill(TOKENS) for driver in ("per_layer", "whole_step")]
    assert np.asarray(runs[0]).tobytes() == np.asarray(runs[1]).tobytes()


@pytest.mark.parametrize("driver", ["whole_step", "per_layer", "eager"])
def test_generate_is_greedy_decoding(driver):
    item = session(driver=driver)
    item.prefill([TOKENS[0, :5].tolist(), TOKENS[1, :3].tolist()])
    got = item.generate(9)
    for row, prompt in enumerate((TOKENS[0, :5], TOKENS[1, :3])):
        tokens = list(prompt)
        for _ in range(9):
            tokens.append(int(numpy_logits(np.array([tokens]))[0, -1].argmax()))
        assert got[row] == tokens[len(prompt) :]


def test_generate_in_chunks_changes_nothing():
    sampling = Sampling(temperature=0.9, top_k=20, top_p=0.95, seed=7)
    texts = []
    for chunk in (1, 5, 64):
        item = session()
        item.prefill(TOKENS[:, :6])
        texts.append(np.concatenate(list(item.stream(40, sampling, (), chunk)), axis=1).tolist())
    assert texts[0] == texts[1] == texts[2]


def test_drivers_sample_the_same_tokens():
    sampling = Sampling(temperature=1.3, seed=3)
    runs = []
    for driver in ("whole_step", "per_layer", "auto"):
        item = session(driver=driver)
        item.prefill(TOKENS[:, :6])
        runs.append(item.generate(20, sampling))
    assert runs[0] == runs[1] == runs[2]
    assert len(set(runs[0][0])) > 5


@pytest.mark.parametrize("driver", ["whole_step", "per_layer"])
def test_a_row_ends_with_its_stop_and_leaves_the_other_alone(driver):
    free = session(driver=driver)
    free.prefill(TOKENS[:, :6])
    full = free.generate(12)
    stop = next(token for token in full[0] if token not in full[1])
    item = session(driver=driver)
    item.prefill(TOKENS[:, :6])
    got = item.generate(12, stops=(stop,))
    assert got[0] == full[0][: full[0].index(stop) + 1]
    assert got[1] == full[1]
    assert item.lengths.tolist() == [6 + len(row) - 1 for row in got]


def test_a_session_goes_on_after_generating(oracle):
    item = session(batch=1)
    item.prefill(TOKENS[:1, :6])
    new = item.generate(5)[0]
    more = [*new[-1:], 4, 2]
    got = item.prefill([more])
    whole = np.array([[*TOKENS[0, :6], *new, 4, 2]])
    assert_close(got, numpy_logits(whole)[:, -1])


def test_auto_loops_on_the_device_once_it_is_warm():
    item = session(driver="auto")
    assert item.driver.loops_from > 20
    item.warm_up(6, 20)
    assert item.driver.loops_from == 1
    item.prefill(TOKENS[:, :6])
    other = session(driver="per_layer")
    other.prefill(TOKENS[:, :6])
    assert item.generate(20) == other.generate(20)


def test_whole_step_gives_the_bits_of_the_packages_own_step():
    item = session()
    positions = np.tile(np.arange(16, dtype=np.int32), (2, 1))
    step = jax.jit(toy.step, compiler_options=dict(XLA_OPTIONS))
    weights = item.driver.weights["prefill"]
    logits, _ = step(weights, item.state, TOKENS[:, :16], positions)
    assert np.asarray(logits).tobytes() == item.prefill(TOKENS[:, :16], logits="all").tobytes()


def test_nothing_compiles_after_warm_up():
    counter = count_compilations()
    for driver in ("whole_step", "per_layer", "auto"):
        item = session(driver=driver)
        sampling = Sampling(temperature=0.7, top_k=10, seed=5)
        item.warm_up(33, 100, sampling, (3,))
        counter.clear()
        item.prefill(TOKENS[:, :33])
        item.generate(60, msgspec.structs.replace(sampling, seed=9), (3,))
        item.reset()
        item.prefill([TOKENS[0, :40].tolist(), TOKENS[1, :36].tolist()])
        item.decode(TOKENS[:, 0])
        item.generate(90, sampling, (3,))
        assert counter == [], driver


def test_a_bucket_that_is_not_warm_compiles():
    item = session(rows=100)
    counter = count_compilations()
    item.prefill(TOKENS[:, :1].repeat(90, axis=1))
    assert counter


def count_compilations():
    events = []

    def listen(name, duration, **_):
        if name == "/jax/core/compile/backend_compile_duration":
            events.append(name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    return events


def raised(call):
    with pytest.raises(CkeError) as caught:
        call()
    return str(caught.value)


ERRORS = [
    (
        lambda: session().prefill([[1, 2], [3, 50]]),
        "error[CKE601]: expected token ids from 0 to 49, got 50 at row 1, column 1\n"
        "  help: check that the tokenizer belongs to this model",
    ),
    (
        lambda: session().prefill([[], []]),
        "error[CKE602]: expected at least one token, got an empty prompt\n"
        "  help: give token ids such as `1 2 3`, or a text that the tokenizer turns into some",
    ),
    (
        lambda: session().generate(3),
        "error[CKE602]: expected a prompt before new tokens, got none\n"
        "  help: call `prefill` first",
    ),
    (
        lambda: session(context=40).prefill(TOKENS),
        "error[CKE603]: expected at most 40 positions, got 41\n"
        "  help: shorten the prompt, or ask for fewer new tokens",
    ),
    (
        lambda: session(batch=1).prefill([[1, 2, 3]], [[0, 2, 1]]),
        "error[CKE604]: `positions` of row 0 expects rising positions from 0 on, got 0, 2, 1\n"
        "  help: positions rise within a row and over its segments; gaps are allowed",
    ),
    (
        lambda: session(batch=1).prefill([[1, 2, 3]], [[0, 1]]),
        "error[CKE604]: `positions` expects the shape of the tokens [1, 3], got [1, 2]\n"
        "  help: give one position per token, -1 for padding",
    ),
    (
        lambda: session().prefill(TOKENS[0]),
        "error[CKE605]: `tokens` expects integers[B, T], got 1 axis\n"
        "  help: one prompt is a batch of one: `[[1, 2, 3]]`",
    ),
    (
        lambda: session().prefill(TOKENS.astype(np.float32)),
        "error[CKE605]: `tokens` expects integers[B, T], got float32\n"
        "  help: one prompt is a batch of one: `[[1, 2, 3]]`",
    ),
    (
        lambda: next(prefilled().stream(3, Sampling(temperature=-1, top_p=0))),
        "error[CKE606]: `temperature` expects a number of at least 0, got -1\n"
        "  help: temperature 0 is greedy, top_k 0 and top_p 1 keep every token\n"
        "error[CKE606]: `top_p` expects a number above 0 and at most 1, got 0\n"
        "  help: temperature 0 is greedy, top_k 0 and top_p 1 keep every token",
    ),
    (
        lambda: make_driver("fast", toy.toy_package(), {}),
        "error[CKE607]: `driver` expects auto | per_layer | whole_step | eager, got `fast`\n"
        "  help: `auto` starts soonest, `whole_step` is the fast one once it is warm",
    ),
    (
        lambda: prefilled().generate(0),
        "error[CKE610]: `new_tokens` expects at least 1, got 0\n  help: ask for at least one token",
    ),
    (
        lambda: session(batch=3).prefill(TOKENS),
        "error[CKE613]: expected 3 rows as the session has, got 2\n"
        "  help: open a session with that `batch`, or pad with rows at position -1",
    ),
    (
        lambda: check_phases(("encode",), ("prefill", "decode")),
        "error[CKE614]: expected a package with the phases prefill and decode, got encode\n"
        "  help: a circuit without state encodes: it has no tokens to generate",
    ),
]


def prefilled():
    item = session()
    item.prefill(TOKENS[:, :5])
    return item


@pytest.mark.parametrize(("call", "text"), ERRORS)
def test_errors_say_what_was_expected_and_how_to_fix_it(call, text):
    assert raised(call) == text


def test_an_error_leaves_the_session_as_it_was(oracle):
    item = session()
    item.prefill(TOKENS[:, :5])
    with pytest.raises(CkeError):
        item.prefill([[1, 2], [3, 50]])
    assert_close(item.prefill(TOKENS[:, 5:8]), oracle[:, 7])
