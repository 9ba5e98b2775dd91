"""What is measured: this project, transformers and llama.cpp, behind two calls.

Each subject takes one prompt and gives greedy tokens, batch 1, on every core. Prefill asks for the
last position's logits alone, as generation does.
"""

import os
import time
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from cke.api.model import load
from cke.runtime.session import Session
from cke.runtime.weights.files import ModelFiles


class Subject(Protocol):
    """Runs a prompt, and tokens after it."""

    name: str

    def prefill(self, tokens: list[int]) -> float:
        """Return the seconds of a prompt, from nothing cached to the last logits."""
        ...

    def decode(self, prompt: list[int], count: int) -> float:
        """Return the seconds of `count` greedy tokens after a prompt."""
        ...


class CkeSubject:
    """This project, with one driver; a session has room for what is run, as in `cke run`."""

    def __init__(
        self,
        path: Path,
        dtype: str,
        driver: str,
        capture: tuple[str, ...] = (),
        name: str | None = None,
    ) -> None:
        self.name = name or f"cke {driver}"
        self.model = load(path, dtype=dtype, driver=driver, capture=capture)
        self._sessions: dict[int, Session] = {}

    def warm_up(self, prompts: list[int], decode_prompt: int, new_tokens: int) -> None:
        """Compile the buckets in use."""
        for length in prompts:
            self._session(length).warm_up(length)
        self._session(decode_prompt + new_tokens + 1).warm_up(decode_prompt, new_tokens)

    def prefill(self, tokens: list[int]) -> float:
        """Return the seconds of a prompt, from nothing cached to the last logits."""
        return self._prefill(self._session(len(tokens)), tokens)

    def decode(self, prompt: list[int], count: int) -> float:
        """Return the seconds of `count` greedy tokens after a prompt."""
        session = self._session(len(prompt) + count + 1)
        self._prefill(session, prompt)
        stream = session.stream(count + 1)
        next(stream)
        started = time.perf_counter()
        given = sum(columns.shape[1] for columns in stream)
        assert given == count, "the bench decodes without stops"
        return time.perf_counter() - started

    def _session(self, rows: int) -> Session:
        if rows not in self._sessions:
            self._sessions[rows] = self.model.session(rows=rows)
        return self._sessions[rows]

    def _prefill(self, session: Session, tokens: list[int]) -> float:
        session.reset()
        started = time.perf_counter()
        np.asarray(session.prefill([tokens]))
        return time.perf_counter() - started


class TransformersSubject:
    """transformers in PyTorch, eager attention, without compilation."""

    name = "transformers"

    def __init__(self, path: Path, dtype: str) -> None:
        self.model = load_transformers(path, dtype)

    def prefill(self, tokens: list[int]) -> float:
        """Return the seconds of a prompt, from nothing cached to the last logits."""
        started = time.perf_counter()
        self._forward(tokens, None)
        return time.perf_counter() - started

    def decode(self, prompt: list[int], count: int) -> float:
        """Return the seconds of `count` greedy tokens after a prompt."""
        found = self._forward(prompt, None)
        started = time.perf_counter()
        for _ in range(count):
            token = int(found.logits[0, -1].argmax())
            found = self._forward([token], found.past_key_values)
        return time.perf_counter() - started

    def _forward(self, tokens: list[int], cache: Any) -> Any:
        import torch

        with torch.inference_mode():
            return self.model(
                torch.tensor([tokens]), past_key_values=cache, use_cache=True, logits_to_keep=1
            )


def load_transformers(path: Path, dtype: str) -> Any:
    """Return the transformers model of a folder, or of a GGUF file, dequantised."""
    import torch
    import transformers

    options: dict[str, Any] = {
        "attn_implementation": "eager",
        "dtype": torch.bfloat16 if dtype in ("bf16", "bfloat16") else torch.float32,
    }
    folder = path
    if path.is_file():
        folder = path.parent
        options["gguf_file"] = path.name
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options).eval()


class LlamaCppSubject:
    """llama.cpp on a file of the run dtype, flash attention off."""

    name = "llama.cpp"

    def __init__(self, path: Path, context: int) -> None:
        import llama_cpp

        self._llama = llama_cpp.Llama(
            str(path),
            n_ctx=context,
            n_batch=context,
            n_ubatch=512,
            n_threads=os.cpu_count(),
            n_threads_batch=os.cpu_count(),
            verbose=False,
        )

    def prefill(self, tokens: list[int]) -> float:
        """Return the seconds of a prompt, from nothing cached to the last logits."""
        self._llama.reset()
        self._llama._ctx.kv_cache_clear()
        started = time.perf_counter()
        self._llama.eval(tokens)
        self._next()
        return time.perf_counter() - started

    def decode(self, prompt: list[int], count: int) -> float:
        """Return the seconds of `count` greedy tokens after a prompt."""
        self.prefill(prompt)
        started = time.perf_counter()
        for _ in range(count):
            self._llama.eval([self._next()])
        self._next()
        return time.perf_counter() - started

    def _next(self) -> int:
        size = self._llama.n_vocab()
        logits = np.ctypeslib.as_array(self._llama._ctx.get_logits(), shape=(size,))
        return int(logits.argmax())


def write_f32_gguf(files: ModelFiles, target: Path) -> Path:
    """Write a GGUF file's tensors dequantised to f32, its metadata kept, and return the path."""
    import gguf

    from cke.runtime.weights.dequantise import dequantise

    config = files.config
    architecture = config["general.architecture"]
    writer = gguf.GGUFWriter(target, architecture)
    skipped = {"general.architecture", "general.file_type", "general.quantization_version"}
    derived = {f"{architecture}.vocab_size"} - set(files.header.metadata if files.header else ())
    for key in config.keys() - skipped - derived:
        if not key.startswith("GGUF."):
            _add_metadata(writer, key, files)
    writer.add_file_type(0)
    for key, tensor in files.located.items():
        writer.add_tensor(key, dequantise(tensor, np.dtype(np.float32)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _add_metadata(writer: Any, key: str, files: ModelFiles) -> None:
    value = files.config[key]
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            (writer.add_int32 if value < 0 else writer.add_uint32)(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, files.array(key))
