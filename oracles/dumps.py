"""Tensors of a folder that someone dumped: .npy, .pt (no code is run) and .safetensors files.

Goal: one way to ask for a tensor, and a list of all that are there. Pickled objects, links and
files outside the folder are refused.
"""

from pathlib import Path
from typing import Any

import numpy as np

from cke.errors import Diagnostic, MissingInputError, Note, RejectedError
from cke.oracles.base import Array

KEPT = {"float32", "float16", "bfloat16", "float64", "int32", "bool"}
SUFFIXES = (".npy", ".pt", ".pth", ".safetensors")
Name = tuple[str, str | None]


class Dump:
    """A folder of tensors; files are opened when they are asked for, and one is kept open."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise MissingInputError(
                Diagnostic(
                    code="CKE741",
                    file=folder.name,
                    message="expected a folder of tensors, got none",
                )
            )
        self.folder = folder
        self._open: tuple[str, dict[str | None, Any]] = ("", {})

    def names(self) -> list[Name]:
        """Return every tensor of the folder as (file, key), in order of name."""
        found: list[Name] = []
        for path in sorted(self.folder.rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                name = path.relative_to(self.folder).as_posix()
                found += [(name, key) for key in sorted(self._file(name), key=str)]
        return found

    def tensor(self, file: str, key: str | None) -> Array:
        """Return a tensor; an absent one is CKE741, one of another kind CKE745."""
        tensors = self._file(file)
        if key is None and len(tensors) == 1:
            key = next(iter(tensors))
        if key not in tensors:
            there = ", ".join(f"`{item}`" for item in list(tensors)[:4])
            raise missing(file, f"no tensor `{key}`, but {there}")
        return _numpy(tensors[key], f"{file}#{key}" if key else file)

    def _file(self, name: str) -> dict[str | None, Any]:
        if self._open[0] != name:
            self._open = (name, _read(self._inside(name), name))
        return self._open[1]

    def _inside(self, name: str) -> Path:
        path = self.folder / name
        if Path(name).is_absolute() or ".." in Path(name).parts or path.is_symlink():
            raise _refused(name, "expected a file inside the dump")
        if not path.is_file():
            raise missing(name, "no such file in the dump")
        return path


def _read(path: Path, name: str) -> dict[str | None, Any]:
    try:
        if path.suffix == ".npy":
            return {None: np.load(path, mmap_mode="r", allow_pickle=False)}
        if path.suffix == ".safetensors":
            return _safetensors(path)
        if path.suffix in (".pt", ".pth"):
            return _torch(path)
    except (ValueError, EOFError, OSError) as error:
        text = str(error).partition("\n")[0]
        raise _refused(name, f"the file is not readable: {text}") from None
    raise _refused(name, f"expected one of {', '.join(SUFFIXES)}, got `{path.suffix}`")


def _safetensors(path: Path) -> dict[str | None, Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            return {key: _Lazy(path, key) for key in file.keys()}
    except SafetensorError as error:
        raise ValueError(str(error)) from None


def _torch(path: Path) -> dict[str | None, Any]:
    import pickle

    import torch

    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError) as error:
        raise ValueError(str(error)) from None
    if isinstance(found, torch.Tensor):
        return {None: found}
    if isinstance(found, dict) and all(isinstance(item, torch.Tensor) for item in found.values()):
        return {str(key): item for key, item in found.items()}
    raise ValueError("expected a tensor or a dict of tensors")


class _Lazy:
    """A tensor of a .safetensors file that was not read yet."""

    def __init__(self, path: Path, key: str) -> None:
        self.path = path
        self.key = key

    def read(self) -> Array:
        """Return the values."""
        import ml_dtypes  # noqa: F401  numpy needs its bfloat16
        from safetensors import safe_open

        with safe_open(self.path, framework="numpy") as file:
            array: Array = file.get_tensor(self.key)
            return array


def _numpy(value: Any, name: str) -> Array:
    array: Array
    if isinstance(value, _Lazy):
        array = value.read()
    elif isinstance(value, np.ndarray):
        array = value
    else:
        array = _from_torch(value)
    if array.dtype == np.int64:
        array = array.astype(np.int32)
    if array.dtype.name not in KEPT:
        raise _refused(name, f"expected one of {', '.join(sorted(KEPT))}, got {array.dtype}")
    return array


def _from_torch(tensor: Any) -> Array:
    import ml_dtypes
    import torch

    plain = tensor.detach().contiguous()
    if plain.dtype == torch.bfloat16:
        raw: Array = plain.view(torch.int16).numpy()
        return raw.view(ml_dtypes.bfloat16)
    array: Array = plain.numpy()
    return array


def missing(file: str, message: str) -> MissingInputError:
    """Return the error of a tensor that a dump does not have."""
    note = Note("correct `file` or `key` of the mapping, or dump the tensor", label="help")
    return MissingInputError(Diagnostic(code="CKE741", file=file, message=message, notes=(note,)))


def _refused(file: str, message: str) -> RejectedError:
    return RejectedError(Diagnostic(code="CKE745", file=file, message=message))
