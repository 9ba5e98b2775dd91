"""Open a model: a folder of Hugging Face files, or a GGUF file, whole or split.

Only headers and configs are read here; values stay on disk until a weight is asked for.
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cke.errors import CkeError, Diagnostic, MissingInputError, Note
from cke.runtime.weights import gguf_header
from cke.runtime.weights.dequantise import dequantise
from cke.runtime.weights.folder import CONFIG, folder_tensors
from cke.runtime.weights.gguf_header import GgufHeader, LongArray
from cke.runtime.weights.gguf_split import read_parts
from cke.runtime.weights.located import LocatedTensor
from cke.schemas.model_source import TensorInfo
from cke.schemas.reading import Limits, open_regular, read_json

MAX_SMALL = 1 << 20
CONFIG_LIMITS = Limits(big_integers=True)
"""transformers itself writes 10^30 as `model_max_length` of a tokenizer without a limit."""
Array = NDArray[np.generic]


class ModelFiles:
    """An opened model; satisfies the compiler's ModelSource.

    `located` says where each tensor's bytes are, and `header` holds the GGUF metadata.
    """

    def __init__(
        self,
        path: Path,
        format: Literal["hf", "gguf"],
        config: dict[str, Any],
        located: dict[str, LocatedTensor],
        header: GgufHeader | None = None,
    ) -> None:
        self.path = path
        self.name = path.name
        self.format: Literal["hf", "gguf"] = format
        self.config = config
        self.located = located
        self.header = header
        self.tensors: dict[str, TensorInfo] | None = {
            key: tensor.info for key, tensor in located.items()
        }

    def values(self, key: str) -> list[float]:
        """Return the elements of a small tensor; a large or absent one is CKE401."""
        tensor = self.located.get(key)
        if tensor is None or int(np.prod(tensor.info.shape, dtype=np.float64)) > MAX_SMALL:
            got = "none" if tensor is None else f"one of shape {list(tensor.info.shape)}"
            raise CkeError(
                Diagnostic(
                    code="CKE401",
                    file=self.name,
                    path=key,
                    message=f"expected a tensor of at most {MAX_SMALL} elements, got {got}",
                    notes=(Note("a circuit may read small tensors only", label="help"),),
                )
            )
        flat: list[float] = dequantise(tensor, np.dtype(np.float64)).ravel().tolist()
        return flat

    def array(self, key: str) -> list[Any]:
        """Return an array of the GGUF metadata, however long; CKE421 when it is none."""
        assert self.header is not None, "only GGUF files have metadata arrays"
        value = self.header.metadata.get(key)
        if isinstance(value, LongArray):
            return gguf_header.read_array(self.header, value)
        if not isinstance(value, list):
            got = "none" if value is None else f"a {type(value).__name__}"
            raise metadata_error(self.name, key, f"expected an array, got {got}")
        return value


def metadata_error(file: str, key: str, message: str) -> CkeError:
    """Return the error of a GGUF metadata value that cannot be what it stands for."""
    note = Note("the file was converted badly: convert or fetch it again", label="help")
    return CkeError(Diagnostic(code="CKE421", file=file, path=key, message=message, notes=(note,)))


def open_model(path: Path | str, *, allow_pickle: bool = False) -> ModelFiles:
    """Return the model at `path`; raises MissingInputError when there is none.

    Pickled weights are refused unless `allow_pickle`, and then read with `weights_only=True`.
    """
    path = Path(path)
    if path.is_dir():
        return _open_folder(path, allow_pickle)
    if path.is_file() and _is_gguf(path):
        return _open_gguf(path)
    got = f"a file that begins otherwise in `{path.name}`" if path.is_file() else "nothing"
    raise MissingInputError(
        Diagnostic(
            code="CKE400",
            file=path.name,
            message=f"expected a model folder with `{CONFIG}`, or a GGUF file, got {got}",
            notes=(Note(f"give the path of the folder that holds `{CONFIG}`", label="help"),),
        )
    )


def generation_config(files: ModelFiles) -> dict[str, Any]:
    """Return generation_config.json, or an empty dict when the folder has none."""
    return read_object(files, "generation_config.json")


def read_object(files: ModelFiles, name: str) -> dict[str, Any]:
    """Return a JSON object of a model folder, or an empty dict when the folder has none."""
    path = files.path / name
    if files.format != "hf" or not path.is_file():
        return {}
    return _object(path)


def _object(path: Path) -> dict[str, Any]:
    found = read_json(path, CONFIG_LIMITS)
    if not isinstance(found, dict):
        got = "an array" if isinstance(found, list) else f"`{found}`"
        raise CkeError(
            Diagnostic(
                code="CKE402",
                file=path.name,
                path="$",
                message=f"expected a JSON object, got {got}",
                notes=(Note("copy the file from the model's source again", label="help"),),
            )
        )
    return found


def _is_gguf(path: Path) -> bool:
    if path.suffix == ".gguf":
        return True
    with open_regular(path) as stream:
        return stream.read(len(gguf_header.MAGIC)) == gguf_header.MAGIC


def _open_folder(folder: Path, allow_pickle: bool) -> ModelFiles:
    config_file = folder / CONFIG
    if not config_file.is_file():
        raise MissingInputError(
            Diagnostic(
                code="CKE400",
                file=folder.name,
                message=f"expected `{CONFIG}` in the folder, got none",
                notes=(Note(_hint(folder), label="help"),),
            )
        )
    return ModelFiles(folder, "hf", _object(config_file), folder_tensors(folder, allow_pickle))


def _hint(folder: Path) -> str:
    found = sorted(folder.glob("*.gguf"))
    if found:
        return f"give the path of `{found[0].name}`"
    snapshots = sorted(folder.glob("snapshots/*/" + CONFIG))
    if snapshots:
        return f"give the path of the snapshot, `snapshots/{snapshots[0].parent.name}`"
    return f"add the model's `{CONFIG}`"


def _open_gguf(path: Path) -> ModelFiles:
    header, located = read_parts(path)
    config = dict(header.metadata)
    architecture = config.get("general.architecture")
    if not isinstance(architecture, str):
        got = "none" if architecture is None else "another type"
        raise metadata_error(path.name, "general.architecture", f"expected a string, got {got}")
    key = f"{architecture}.vocab_size"
    tokens = config.get("tokenizer.ggml.tokens")
    if key not in config and isinstance(tokens, LongArray | list):
        config[key] = tokens.count if isinstance(tokens, LongArray) else len(tokens)
    return ModelFiles(path, "gguf", config, located, header)
