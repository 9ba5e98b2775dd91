"""Open an oracle by name: `pytorch`, `llamacpp`, or a recorded trace folder.

The optional packages are imported only by the oracle that needs them.
"""

import hashlib
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cke.errors import CkeError, Diagnostic, MissingInputError, Note
from cke.errors.files import cache_folder
from cke.oracles.base import Oracle

DOCUMENT = "trace.json"
LIVE = ("pytorch", "llamacpp")
NEEDED = {"pytorch": ("torch", "transformers"), "llamacpp": ("llama_cpp", "gguf")}

WHOLE = ("llama", "qwen2", "gemma2", "gemma3")
"""Architectures of GGUF files that transformers loads whole: of others it drops head widths."""


def open_oracle(name: str, model: Path, dtype: str = "f32") -> Oracle:
    """Return the oracle `name` on the model at `model`, or the trace folder of that path.

    An unknown name is CKE720.
    """
    if (Path(name) / DOCUMENT).is_file():
        from cke.oracles.recorded import RecordedOracle

        return RecordedOracle(Path(name))
    if name not in LIVE:
        known = ", ".join(f"`{item}`" for item in LIVE)
        expected = f"expected an oracle of {known}, `reference` or a trace folder"
        raise CkeError(Diagnostic(code="CKE720", message=f"{expected}, got `{name}`"))
    if not model.exists():
        raise MissingInputError(
            Diagnostic(
                code="CKE721",
                file=model.name,
                message="expected a model folder or a .gguf file, got nothing",
                notes=(Note("check the path given with --model", label="help"),),
            )
        )
    if name == "pytorch":
        from cke.oracles.pytorch import PyTorchOracle

        return PyTorchOracle(model, dtype)
    from cke.oracles.llamacpp import LlamaCppOracle

    return LlamaCppOracle(_gguf(model, dtype))


def oracles_at_hand(model: Path, keys: int = 0) -> tuple[str, ...]:
    """Return the live oracles that are installed and can run a model on rows of `keys` tokens."""
    answers = {"pytorch": _in_transformers, "llamacpp": _in_llamacpp}
    known = _gguf_config(model) if model.suffix == ".gguf" else _config(model)
    return tuple(name for name in LIVE if _installed(name) and answers[name](model, known, keys))


def _installed(name: str) -> bool:
    return all(find_spec(package) is not None for package in NEEDED[name])


def _in_transformers(model: Path, config: dict[str, Any], keys: int) -> bool:
    from cke.oracles.points import family_names

    if model.suffix == ".gguf":
        architecture = config.get("general.architecture")
        return architecture in WHOLE and not config.get(f"{architecture}.expert_count")
    return config.get("model_type") in family_names()


def _in_llamacpp(model: Path, config: dict[str, Any], keys: int) -> bool:
    from cke.oracles.points import ARCHITECTURES, WINDOWED

    if model.suffix == ".gguf":
        architecture = config.get("general.architecture")
        window = config.get(f"{architecture}.attention.sliding_window")
    else:
        architecture = ARCHITECTURES.get(str(config.get("model_type")))
        window = config.get("sliding_window")
        if architecture is None or _untold(model, config, architecture):
            return False
    short = architecture in WINDOWED or not window or keys <= int(window)
    return short and architecture in ARCHITECTURES.values()


def _untold(model: Path, config: dict[str, Any], architecture: str) -> bool:
    from cke.oracles.gguf_writer import refuse_untold

    try:
        refuse_untold(model, config, architecture)
    except CkeError:
        return True
    return False


def _gguf_config(model: Path) -> dict[str, Any]:
    from cke.runtime.weights.files import open_model

    return dict(open_model(model).config)


def _config(model: Path) -> dict[str, Any]:
    file = model / "config.json"
    found: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    return found


def _gguf(model: Path, dtype: str) -> Path:
    """Return a GGUF file of the model in `dtype`: its own, or one written to the cache."""
    from cke.oracles.gguf_copy import dequantise_gguf, is_stored_in, stored_kinds
    from cke.oracles.gguf_writer import write_gguf

    copied = model.suffix == ".gguf"
    if copied and is_stored_in(stored_kinds(model), dtype):
        return model
    target = cache_folder("gguf", f"{_key(model, dtype)}.gguf")
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        (dequantise_gguf if copied else write_gguf)(model, target, dtype)
    return target


def _key(model: Path, dtype: str) -> str:
    key = hashlib.sha256(dtype.encode())
    found = [model] if model.is_file() else [*model.glob("*.safetensors"), model / "config.json"]
    for file in sorted(found):
        key.update(str(file.resolve()).encode() + str(file.stat().st_size).encode())
        key.update(str(file.stat().st_mtime_ns).encode())
    return key.hexdigest()[:24]
