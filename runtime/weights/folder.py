"""The weights files of a Hugging Face folder: one file, or shards with their index.

Links are followed: in a cache snapshot every file is a link to a blob.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cke.errors import CkeError, Diagnostic, MissingInputError, Note
from cke.runtime.weights.located import LocatedTensor
from cke.runtime.weights.pickled import read_pickle
from cke.runtime.weights.safetensors_header import read_header
from cke.schemas.reading import Limits, read_json, shown

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLE = "pytorch_model.bin"
PICKLE_INDEX = "pytorch_model.bin.index.json"
INDEX_LIMITS = Limits(max_bytes=64 << 20, big_integers=True)
Located = dict[str, LocatedTensor]
Reader = Callable[[Path], Located]


def folder_tensors(folder: Path, allow_pickle: bool) -> Located:
    """Return every tensor of the folder's weights by key."""
    if (folder / INDEX).is_file():
        return _sharded(folder / INDEX, read_header)
    if (folder / SINGLE).is_file():
        return read_header(folder / SINGLE)
    others = sorted(folder.glob("*.safetensors"))
    if len(others) == 1:
        return read_header(others[0])
    pickled = (folder / PICKLE_INDEX).is_file() or (folder / PICKLE).is_file()
    if pickled and not allow_pickle:
        raise _refused(folder)
    if (folder / PICKLE_INDEX).is_file():
        return _sharded(folder / PICKLE_INDEX, read_pickle)
    if pickled:
        return read_pickle(folder / PICKLE)
    raise _none(folder, others)


def _refused(folder: Path) -> CkeError:
    return CkeError(
        Diagnostic(
            code="CKE403",
            file=folder.name,
            message=f"expected `{SINGLE}` or `{INDEX}`, got pickled weights in `{PICKLE}`",
            notes=(
                Note("a pickle file can run code when it is read"),
                Note(
                    "save the model as safetensors, or allow pickled weights on purpose: "
                    "`--allow-pickle`, or `allow_pickle=True`",
                    label="help",
                ),
            ),
        )
    )


def _none(folder: Path, others: list[Path]) -> CkeError:
    names = ", ".join(f"`{file.name}`" for file in others[:3])
    got = f"{len(others)} files without an index ({names}, …)" if others else "none"
    return MissingInputError(
        Diagnostic(
            code="CKE400",
            file=folder.name,
            message=f"expected `{SINGLE}` or `{INDEX}`, got {got}",
            notes=(Note("add the weights files of the model to the folder", label="help"),),
        )
    )


def _sharded(index: Path, read: Reader) -> Located:
    document = read_json(index, INDEX_LIMITS)
    names: Any = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(names, dict) or not all(isinstance(v, str) for v in names.values()):
        raise _bad(index, "$.weight_map", "expected an object of tensor key to file name")
    located: Located = {}
    for name in sorted(set(names.values())):
        _check_name(index, name)
        shard = read(index.parent / name)
        _check_shard(index, names, name, shard)
        located.update(shard)
    for key, name in names.items():
        if key not in located:
            raise _bad(index, _at(key), f"expected the tensor in `{name}`, got none")
    return {key: located[key] for key in names}


def _check_name(index: Path, name: str) -> None:
    if not name or Path(name).name != name or "\0" in name:
        raise _bad(
            index, "$.weight_map", f"expected the name of a file beside it, got `{shown(name)}`"
        )
    if not (index.parent / name).is_file():
        raise MissingInputError(
            _error(index, "$.weight_map", f"expected a file `{shown(name)}` beside it, got none")
        )


def _check_shard(index: Path, names: dict[str, str], name: str, shard: Located) -> None:
    for key in shard:
        if names.get(key) != name:
            got = f"`{shown(names[key])}`" if key in names else "none"
            raise _bad(index, _at(key), f"expected `{name}`, which holds the tensor, got {got}")


def _at(key: str) -> str:
    return f"$.weight_map.{shown(key)}"


def _bad(index: Path, path: str, message: str) -> CkeError:
    return CkeError(_error(index, path, message))


def _error(index: Path, path: str, message: str) -> Diagnostic:
    note = Note("index and shards belong together: fetch them all again", label="help")
    return Diagnostic(code="CKE404", file=index.name, path=path, message=message, notes=(note,))
