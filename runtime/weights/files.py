"""Open a model: a folder of Hugging Face files, or a GGUF file, whole or split.

Only headers and configs are read here; values stay on disk until a weight is asked for.
"""

import json
import re
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cke.errors import CkeError, Diagnostic, MissingInputError, Note
from cke.runtime.weights import gguf_header, safetensors_header
from cke.runtime.weights.dequantise import dequantise
from cke.runtime.weights.gguf_header import GgufHeader, LongArray
from cke.runtime.weights.located import LocatedTensor
from cke.schemas.model_source import TensorInfo
from cke.schemas.reading import read_json

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
CONFIG = "config.json"
SPLIT = re.compile(r"^(?P<stem>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})\.gguf$")
MAX_SMALL = 1 << 20
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
        if tensor is None or int(np.prod(tensor.info.shape)) > MAX_SMALL:
            raise CkeError(
                Diagnostic(
                    code="CKE401",
                    file=self.name,
                    path=key,
                    message="expected a small tensor that a circuit may read, got none",
                )
            )
        flat: list[float] = dequantise(tensor, np.dtype(np.float64)).ravel().tolist()
        return flat

    def array(self, key: str) -> list[Any]:
        """Return a long array of the GGUF metadata, such as the vocabulary."""
        assert self.header is not None, "only GGUF files have metadata arrays"
        value = self.header.metadata[key]
        if isinstance(value, LongArray):
            return gguf_header.read_array(self.header, value)
        assert isinstance(value, list), f"`{key}` is no array"
        return value


def open_model(path: Path | str) -> ModelFiles:
    """Return the model at `path`; raises MissingInputError when there is none."""
    path = Path(path)
    if path.is_dir():
        return _open_folder(path)
    if path.suffix == ".gguf" and path.is_file():
        return _open_gguf(path)
    got = "a file that is not .gguf" if path.is_file() else "nothing"
    raise MissingInputError(
        Diagnostic(
            code="CKE400",
            file=path.name,
            message=f"expected a model folder with {CONFIG}, or a .gguf file, got {got}",
            notes=(Note("point --model at the folder that holds config.json", label="help"),),
        )
    )


def _open_folder(folder: Path) -> ModelFiles:
    config_file = folder / CONFIG
    if not config_file.is_file():
        found = sorted(folder.glob("*.gguf"))
        hint = f"point --model at {found[0].name}" if found else "add the model's config.json"
        raise MissingInputError(
            Diagnostic(
                code="CKE400",
                file=folder.name,
                message=f"expected `{CONFIG}` in the folder, got none",
                notes=(Note(hint, label="help"),),
            )
        )
    config = read_json(config_file)
    if not isinstance(config, dict):
        raise CkeError(
            Diagnostic(code="CKE402", file=CONFIG, path="$", message="expected a JSON object")
        )
    return ModelFiles(folder, "hf", config, _folder_tensors(folder))


def _folder_tensors(folder: Path) -> dict[str, LocatedTensor]:
    index = folder / INDEX
    if index.is_file():
        return _indexed(folder, index)
    single = folder / SINGLE
    if single.is_file():
        return safetensors_header.read_header(single)
    others = sorted(folder.glob("*.safetensors"))
    if len(others) == 1:
        return safetensors_header.read_header(others[0])
    pickles = sorted([*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")])
    message = f"expected `{SINGLE}` or `{INDEX}`, got " + (
        f"pickle weights in `{pickles[0].name}`" if pickles else f"{len(others)} other files"
    )
    help_text = "save the model as safetensors: pickle files can run code and are not read"
    raise MissingInputError(
        Diagnostic(
            code="CKE403" if pickles else "CKE400",
            file=folder.name,
            message=message,
            notes=(Note(help_text, label="help"),) if pickles else (),
        )
    )


def _indexed(folder: Path, index: Path) -> dict[str, LocatedTensor]:
    document = read_json(index)
    names = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(names, dict) or not all(isinstance(v, str) for v in names.values()):
        raise _index_error("$.weight_map", "expected an object of tensor key to file name")
    located: dict[str, LocatedTensor] = {}
    for name in sorted(set(names.values())):
        if Path(name).name != name or not (folder / name).is_file():
            raise _index_error("$.weight_map", f"expected a file `{name}` beside it, got none")
        located.update(safetensors_header.read_header(folder / name))
    for key, name in names.items():
        if key not in located or located[key].file.name != name:
            raise _index_error(f"$.weight_map.{key}", f"expected the tensor in `{name}`, got none")
    return {key: located[key] for key in names}


def _index_error(path: str, message: str) -> CkeError:
    return CkeError(Diagnostic(code="CKE404", file=INDEX, path=path, message=message))


def _open_gguf(path: Path) -> ModelFiles:
    header = gguf_header.read_header(path)
    located = dict(header.tensors)
    match = SPLIT.match(path.name)
    if match is not None:
        header, located = _split(path, match)
    config = dict(header.metadata)
    architecture = config.get("general.architecture")
    if not isinstance(architecture, str):
        raise gguf_header.bad(path, "expected `general.architecture`, got none")
    key = f"{architecture}.vocab_size"
    tokens = config.get("tokenizer.ggml.tokens")
    if key not in config and tokens is not None:
        config[key] = tokens.count if isinstance(tokens, LongArray) else len(tokens)
    return ModelFiles(path, "gguf", config, located, header)


def _split(path: Path, match: re.Match[str]) -> tuple[GgufHeader, dict[str, LocatedTensor]]:
    count = int(match["count"])
    located: dict[str, LocatedTensor] = {}
    first: GgufHeader | None = None
    for number in range(1, count + 1):
        part = path.with_name(f"{match['stem']}-{number:05d}-of-{count:05d}.gguf")
        if not part.is_file():
            raise MissingInputError(
                Diagnostic(
                    code="CKE405",
                    file=path.name,
                    message=f"expected {count} parts, got none named `{part.name}`",
                )
            )
        header = gguf_header.read_header(part)
        twice = located.keys() & header.tensors.keys()
        if twice:
            raise gguf_header.bad(part, f"the tensor `{sorted(twice)[0]}` stands in two parts")
        located.update(header.tensors)
        first = first or header
    assert first is not None, "a split file has at least one part"
    return first, located


def read_text(path: Path) -> str:
    """Return a small text file of a model folder."""
    return path.read_text("utf-8")


def generation_config(files: ModelFiles) -> dict[str, Any]:
    """Return generation_config.json, or an empty dict when the folder has none."""
    path = files.path / "generation_config.json"
    if files.format != "hf" or not path.is_file():
        return {}
    found = json.loads(path.read_text("utf-8"))
    return found if isinstance(found, dict) else {}
