"""Read a mapping file and expand it: one entry per checkpoint, layer and forward."""

import fnmatch
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from cke.errors import CkeError, Diagnostic, Note
from cke.oracles.dumps import Name, missing
from cke.runtime.records import join_id
from cke.schemas.oracle_mapping import SCHEMA, VERSION, MappedTensor, OracleMapping
from cke.schemas.reading import read_bytes

LAYER = "{L}"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of a dump and the checkpoint that it is declared to be.

    `item` is an index into a stored pair; `chunk` takes part i of n of the last axis.
    """

    name: str
    layer: int | None
    file: str
    key: str | None
    axes: str
    segment: int = 0
    role: str | None = None
    derivation: str | None = None
    chunk: tuple[int, int] | None = None

    @property
    def checkpoint_id(self) -> str:
        """The id with its layer."""
        return join_id(self.name, self.layer)


def read_mapping(path: Path) -> OracleMapping:
    """Return the mapping in the TOML file at `path`; anything malformed is CKE740 with its path."""
    try:
        raw = tomllib.loads(read_bytes(path).decode("utf-8"))
        mapping = msgspec.convert(raw, OracleMapping)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _bad(path, "$", f"expected TOML: {str(error).lower()}") from None
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `")
        raise _bad(path, where.rstrip("`") or "$", message[:1].lower() + message[1:]) from None
    if (mapping.schema, mapping.version) != (SCHEMA, VERSION):
        raise _bad(
            path,
            "$.schema",
            f"expected `{SCHEMA}` version {VERSION}, got `{mapping.schema}` "
            f"version {mapping.version}",
        )
    return mapping


def expand(mapping: OracleMapping, path: Path) -> list[Entry]:
    """Return every entry; a repeated one, or `{L}` without layers, is CKE740."""
    entries: list[Entry] = []
    seen: set[tuple[str, str | None, int]] = set()
    for index, tensor in enumerate(mapping.tensor):
        for entry in _entries(tensor, mapping, path, f"$.tensor[{index}]"):
            key = (entry.checkpoint_id, entry.role, entry.segment)
            if key in seen:
                raise _bad(path, f"$.tensor[{index}]", f"`{key[0]}` is mapped twice")
            seen.add(key)
            entries.append(entry)
    return entries


def _entries(
    tensor: MappedTensor, mapping: OracleMapping, path: Path, where: str
) -> Iterator[Entry]:
    texts = (tensor.checkpoint, tensor.file, tensor.key or "")
    layers: Iterable[int | None] = (None,)
    if any(LAYER in text for text in texts):
        layers = tensor.layers if tensor.layers is not None else range(mapping.layers)
        if not layers:
            raise _bad(path, where, "`{L}` needs `layers`, here or for the whole mapping")
    for layer in layers:
        checkpoint, file, key = (text.replace(LAYER, str(layer)) for text in texts)
        name, own = _split(checkpoint, path, where)
        yield Entry(
            name=name,
            layer=own,
            file=file,
            key=key or None,
            axes=tensor.axes,
            segment=tensor.segment,
            role=tensor.role,
            derivation=tensor.derivation,
        )


def _split(checkpoint: str, path: Path, where: str) -> tuple[str, int | None]:
    if not checkpoint.startswith("layer."):
        return checkpoint, None
    _, _, rest = checkpoint.partition(".")
    number, _, name = rest.partition(".")
    if not number.isdigit() or not name:
        expected = "expected `layer.<number>.<name>`"
        raise _bad(path, f"{where}.checkpoint", f"{expected}, got `{checkpoint}`")
    return name, int(number)


def check_all_used(names: list[Name], entries: list[Entry], ignore: tuple[str, ...]) -> None:
    """Check that what is mapped is there (CKE741), and all else ignored by name (CKE742)."""
    files = {file for file, _ in names}
    for entry in entries:
        if entry.file not in files:
            raise missing(entry.file, "no such file in the dump")
        if entry.key is not None and (entry.file, entry.key) not in names:
            raise missing(entry.file, f"no tensor `{entry.key}` in the file")
    used = {(entry.file, entry.key) for entry in entries}
    whole = {entry.file for entry in entries if entry.key is None}
    left = [
        (file, key)
        for file, key in names
        if (file, key) not in used
        and file not in whole
        and not any(
            fnmatch.fnmatchcase(file, pattern) or fnmatch.fnmatchcase(f"{file}#{key}", pattern)
            for pattern in ignore
        )
    ]
    if left:
        shown = ", ".join(f"`{file}#{key}`" if key else f"`{file}`" for file, key in left[:4])
        more = f" and {len(left) - 4} more" if len(left) > 4 else ""
        raise CkeError(
            Diagnostic(
                code="CKE742",
                message=f"expected every tensor of the dump to be mapped, got {shown}{more} "
                "that is not",
                notes=(Note("map them, or list them under `ignore`", label="help"),),
            )
        )


def _bad(path: Path, where: str, message: str) -> CkeError:
    return CkeError(Diagnostic(code="CKE740", file=path.name, path=where, message=message))
