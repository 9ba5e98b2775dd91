"""Open an oracle by name: `pytorch`, `llamacpp`, or a recorded trace folder.

The optional packages are imported only by the oracle that needs them.
"""

import hashlib
from pathlib import Path

from cke.errors import CkeError, Diagnostic, MissingInputError, Note
from cke.errors.files import cache_folder
from cke.oracles.base import Oracle

DOCUMENT = "trace.json"
LIVE = ("pytorch", "llamacpp")


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
