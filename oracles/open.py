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


def oracles_at_hand(model: Path) -> tuple[str, ...]:
    """Return the live oracles that are installed and have a table for a model's family."""
    answers = {"pytorch": _in_transformers, "llamacpp": _in_llamacpp}
    return tuple(name for name in LIVE if _installed(name) and answers[name](model))


def _installed(name: str) -> bool:
    return all(find_spec(package) is not None for package in NEEDED[name])


def _in_transformers(model: Path) -> bool:
    from cke.oracles.points import family_names

    return model.suffix == ".gguf" or _config(model).get("model_type") in family_names()


def _in_llamacpp(model: Path) -> bool:
    from cke.oracles.gguf_writer import refuse_untold
    from cke.oracles.points import ARCHITECTURES

    if model.suffix == ".gguf":
        return True
    config = _config(model)
    architecture = ARCHITECTURES.get(str(config.get("model_type")))
    if architecture is None:
        return False
    try:
        refuse_untold(model, config, architecture)
    except CkeError:
        return False
    return True


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
