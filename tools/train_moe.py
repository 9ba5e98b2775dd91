"""Train one small Qwen3-MoE on free text and write it as a model folder, so that routing is learnt.

    python tools/train_moe.py [--steps N] [--out FOLDER]

The text is of the standard library: the language reference and module sources that the fidelity
suite does not hold. The folder lies in the user's cache under a hash of everything that decides
it: this file, the text, the versions and the number of steps. One that is there is used.
"""

import argparse
import hashlib
import inspect
import json
import pydoc_data.topics
import sys
import tempfile
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

STEPS = 600
BATCH, LENGTH = 16, 64
LEARNING_RATE = 4e-3
VOCABULARY = 512
MODULES = (
    *("abc", "argparse", "base64", "calendar", "cmd", "configparser", "contextlib", "copy", "csv"),
    *("dataclasses", "datetime", "functools", "glob", "inspect", "json.decoder", "logging"),
    *("mailbox", "numbers", "optparse", "pathlib", "pickle", "pprint", "shutil", "socket"),
    *("subprocess", "tarfile", "tempfile", "threading", "tokenize", "traceback", "typing"),
    *("unittest.mock", "urllib.parse", "uuid", "wave", "zipfile"),
)
CONFIG: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "max_position_embeddings": 512,
    "router_aux_loss_coef": 0.01,
    "tie_word_embeddings": True,
    "eos_token_id": 0,
    "bos_token_id": None,
}


def training_text() -> str:
    """The text, in an order that does not change."""
    topics = pydoc_data.topics.topics
    suite = set(sorted(topics)[::6])
    parts = [topics[name] for name in sorted(topics) if name not in suite]
    parts += [inspect.getsource(import_module(name)) for name in MODULES]
    return "\n\n".join(parts)


def key(text: str, steps: int) -> str:
    """The hash of what decides the weights, but for the machine that trains."""
    facts = [Path(__file__).read_text("utf-8"), text, str(steps)]
    facts += [f"{name}=={version(name)}" for name in ("torch", "transformers", "tokenizers")]
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]


def train(steps: int, text: str, folder: Path) -> float:
    """Train, write model and tokenizer to `folder`, and return the loss of the last steps."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    ids = torch.tensor(tokenizer.encode(text).ids)
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**CONFIG, output_router_logits=True)).float()
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, LEARNING_RATE, total_steps=steps)
    losses = []
    for step in range(steps):
        starts = torch.randint(0, len(ids) - LENGTH, (BATCH,))
        batch = torch.stack([ids[start : start + LENGTH] for start in starts])
        loss = model(input_ids=batch, labels=batch).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        losses.append(loss.detach().item())
        if step % 50 == 0:
            print(f"step {step} of {steps}: loss {losses[-1]:.3f}", file=sys.stderr, flush=True)
    model.config.output_router_logits = False
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    count = sum(parameter.numel() for parameter in model.parameters())
    facts = {"steps": steps, "parameters": count, "tokens": len(ids), "loss": losses[-20:]}
    folder.joinpath("training.json").write_text(json.dumps(facts, indent=1) + "\n", "utf-8")
    return sum(losses[-20:]) / len(losses[-20:])


def trained(steps: int = STEPS, root: Path | None = None) -> Path:
    """The folder of the trained model; it is trained when it is not there yet."""
    if root is None:
        import platformdirs

        root = Path(platformdirs.user_cache_dir("cke", appauthor=False)) / "trained"
    text = training_text()
    target = root / f"qwen3-moe-{key(text, steps)}"
    if not target.is_dir():
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".training.", dir=root) as scratch:
            made = Path(scratch) / "model"
            made.mkdir()
            loss = train(steps, text, made)
            print(f"loss of the last steps: {loss:.3f}", file=sys.stderr)
            try:
                made.rename(target)
            except OSError:
                if not target.is_dir():
                    raise
    return target


def main() -> None:
    """Train, and print where the folder is."""
    parser = argparse.ArgumentParser(description="Train the small Qwen3-MoE of the campaigns.")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, help="the folder of trained models; the user's cache")
    options = parser.parse_args()
    print(trained(options.steps, options.out))


if __name__ == "__main__":
    main()
