"""The float64 interpreter: any segmentation is the same program, padding changes nothing."""

import numpy as np
import pytest

from cke.oracles.reference import Run, run
from cke.schemas.graph_ir import GraphIR
from tests.codegen.levels import levels

TOKENS = np.random.default_rng(1).integers(0, 17, (2, 7)).astype(np.int32)
POSITIONS = np.arange(7, dtype=np.int32)[None].repeat(2, 0)


@pytest.fixture(scope="module")
def graph() -> GraphIR:
    return levels().graph


@pytest.fixture(scope="module")
def weights(graph: GraphIR) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    made: dict[str, np.ndarray] = {}
    program = graph.programs[0]
    functions = {function.name: function for function in program.functions}
    for step in program.steps:
        for weight in functions[step.function].weights:
            value = random.standard_normal(weight.type.shape) / weight.type.shape[-1] ** 0.5
            made[step.weights[weight.name]] = value.astype(np.float32)
    return made


def _logits(done: Run) -> np.ndarray:
    return done.outputs[0]


@pytest.mark.parametrize("cuts", [[3], [1, 2, 3, 4, 5, 6], [6]])
def test_any_segmentation_gives_the_same_logits(
    graph: GraphIR, weights: dict[str, np.ndarray], cuts: list[int]
) -> None:
    whole = _logits(run(graph, weights, TOKENS, POSITIONS))
    state, parts = None, []
    for tokens, positions in zip(
        np.split(TOKENS, cuts, 1), np.split(POSITIONS, cuts, 1), strict=True
    ):
        done = run(graph, weights, tokens, positions, state)
        state = done.state
        parts.append(_logits(done))
    assert np.max(np.abs(np.concatenate(parts, 1) - whole)) <= 1e-12 * np.max(np.abs(whole))


def test_a_padded_row_gives_what_the_row_alone_gives(
    graph: GraphIR, weights: dict[str, np.ndarray]
) -> None:
    padded = np.where(np.arange(7) < [[7], [4]], POSITIONS, -1).astype(np.int32)
    both = _logits(run(graph, weights, TOKENS, padded))
    alone = _logits(run(graph, weights, TOKENS[1:, :4], POSITIONS[1:, :4]))
    assert np.max(np.abs(both[1:, :4] - alone)) <= 1e-12 * np.max(np.abs(alone))
    assert np.all(np.isfinite(both))


def test_a_run_leaves_its_state_as_it_was(graph: GraphIR, weights: dict[str, np.ndarray]) -> None:
    first = run(graph, weights, TOKENS[:, :3], POSITIONS[:, :3])
    once = run(graph, weights, TOKENS[:, 3:], POSITIONS[:, 3:], first.state)
    again = run(graph, weights, TOKENS[:, 3:], POSITIONS[:, 3:], first.state)
    assert np.array_equal(_logits(once), _logits(again))


def test_captures_are_those_asked_for_in_float64(
    graph: GraphIR, weights: dict[str, np.ndarray]
) -> None:
    wanted = "layer.1.attention.rope_query_output"
    captures = run(graph, weights, TOKENS, POSITIONS, capture=[wanted]).captures
    assert list(captures) == [wanted]
    assert captures[wanted].dtype == np.float64
    assert captures[wanted].shape == (2, 7, 4, 6)


def test_an_alias_is_captured_as_the_edge_that_it_equals(
    graph: GraphIR, weights: dict[str, np.ndarray]
) -> None:
    captures = run(graph, weights, TOKENS, POSITIONS, capture=lambda name: True).captures
    assert np.array_equal(captures["layer.1.layer_input"], captures["layer.0.layer_output"])


def test_weights_are_asked_for_by_the_step_that_reads_them(
    graph: GraphIR, weights: dict[str, np.ndarray]
) -> None:
    asked: list[str] = []

    class Lazy(dict[str, np.ndarray]):
        def __getitem__(self, name: str) -> np.ndarray:
            asked.append(name)
            return super().__getitem__(name)

    run(graph, Lazy(weights), TOKENS, POSITIONS)
    layers = [name.split(".")[1] for name in asked if name.startswith("layer")]
    assert layers == sorted(layers)
    assert layers
