"""Time scoring side by side: a plain torch script, and ours compiled and eager, one after another.

    python tools/fidelity_speed.py MODEL.gguf [--length 256] [--rounds 3]

Every engine scores the same context in every round, so that load hits all alike; read the ratios.
The torch script keeps the reference's logits and takes one head product a context; ours reads the
capture, makes the reference's logits anew, and scores the trunk as well: three head products.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cke.api.fidelity import freeze_suite, open_subject
from cke.fidelity.capture import CaptureRequest, capture, live_fields
from cke.fidelity.capture_reader import Capture
from cke.fidelity.kld import block_scores
from cke.fidelity.score import matching_contexts, score_row
from cke.fidelity.settings import BLOCK, Mode
from cke.fidelity.suite import SuiteRequest
from cke.fidelity.suite_reader import Suite, load_suite


def ours(model: Path, suite: Suite, mode: Mode, root: Path) -> Callable[[], object]:
    """A run of our scorer over the first context of the suite."""
    subject = open_subject(model, mode)
    capture(subject, suite, CaptureRequest(limit=1), root / mode)
    taken = Capture(root / mode)
    contexts = matching_contexts(taken, suite)
    live = live_fields(subject, suite, contexts, 0)
    return lambda: score_row(taken, subject, 0, contexts[0], live)


def torch_script(model: Path, tokens: list[int]) -> Callable[[], object]:
    """A run of what one would write with torch: logits, log-softmax, the divergence."""
    import torch
    import transformers

    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        model.parent,
        gguf_file=model.name,
        quantization_config=transformers.GgufConfig(dequantize=True),
        dtype=torch.float32,
    ).eval()
    ids = torch.tensor([tokens])
    with torch.inference_mode():
        reference = torch.log_softmax(loaded(ids).logits[0, :-1], -1)

    def run() -> Any:
        with torch.inference_mode():
            own = torch.log_softmax(loaded(ids).logits[0, :-1], -1)
            return (reference.exp() * (reference - own)).sum(-1).mean()

    return run


def head_and_kld(width: int, vocabulary: int) -> dict[str, Callable[[], object]]:
    """The head's product of a block, and the scores of a block, both compiled."""
    random = np.random.default_rng(0)
    hidden = jnp.asarray(random.normal(size=(BLOCK, width)).astype(np.float32))
    weight = jnp.asarray(random.normal(size=(vocabulary, width)).astype(np.float32))
    product = jax.jit(lambda a, b: a @ b.T)
    first = product(hidden, weight)
    second = first + jnp.float32(0.01)
    return {
        "head product": lambda: product(hidden, weight).block_until_ready(),
        "scores": lambda: block_scores(first, second, vocabulary, "compiled"),
    }


def interleaved(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every run in every round, after one that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            if number:
                seconds[name].append(time.perf_counter() - begin)
    return seconds


def main() -> None:
    """Measure, and print seconds and median ratios as JSON."""
    parser = argparse.ArgumentParser(description="Time fidelity scoring beside a torch script.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        request = SuiteRequest(contexts=24, length=given.length)
        freeze_suite(given.model, request, root / "suite")
        suite = load_suite(root / "suite")
        runs = {mode: ours(given.model, suite, mode, root) for mode in ("compiled", "eager")}
        tokens = next(c for c in suite.contexts if c.partition == "analysis").token_ids
        runs["torch"] = torch_script(given.model, list(tokens))
        found = interleaved(runs, given.rounds)
        parts = interleaved(head_and_kld(576, 49_152), given.rounds)
    ratio = {
        name: statistics.median(t / s for t, s in zip(found["torch"], found[name], strict=True))
        for name in ("compiled", "eager")
    }
    kld = statistics.median(
        s / p for s, p in zip(parts["scores"], parts["head product"], strict=True)
    )
    facts = {"length": given.length, "seconds": found | parts}
    facts |= {"torch_over_ours": ratio, "scores_over_head_product": kld}
    print(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
