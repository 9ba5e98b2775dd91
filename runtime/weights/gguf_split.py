"""The parts of a split GGUF file, `NAME-00001-of-0000N.gguf`, as one header and one set of tensors.

The metadata stand in the first part; every part states its number, and how many there are.
"""

import re
from pathlib import Path
from typing import Any

from cke.errors import Diagnostic, MissingInputError, Note
from cke.runtime.weights.gguf_header import GgufHeader, bad, read_header
from cke.runtime.weights.located import LocatedTensor
from cke.schemas.reading import shown

SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def read_parts(path: Path) -> tuple[GgufHeader, dict[str, LocatedTensor]]:
    """Return the header of the first part and the tensors of all; any part may be given."""
    match = SPLIT.fullmatch(path.name)
    if match is None:
        header = read_header(path)
        if header.metadata.get("split.count", 1) not in (0, 1):
            raise bad(path, "is one part of several, expected a name like `x-00001-of-00002.gguf`")
        return header, header.tensors
    count = int(match["count"])
    if not 1 <= int(match["number"]) <= count:
        raise bad(path, f"the file name expects a part of 1 to {count}, got {int(match['number'])}")
    parts = [_read_part(path, match["stem"], number, count) for number in range(1, count + 1)]
    return parts[0], _merged(parts)


def _read_part(path: Path, stem: str, number: int, count: int) -> GgufHeader:
    part = path.with_name(f"{stem}-{number:05d}-of-{count:05d}.gguf")
    if not part.is_file():
        raise MissingInputError(
            Diagnostic(
                code="CKE405",
                file=path.name,
                message=f"expected {count} parts, got none named `{part.name}`",
                notes=(Note("put all the parts into one folder", label="help"),),
            )
        )
    header = read_header(part)
    for key, expected in (("split.count", count), ("split.no", number - 1)):
        got: Any = header.metadata.get(key, expected)
        if got != expected:
            raise bad(part, f"`{key}` expects {expected}, as the file name says, got {got}")
    return header


def _merged(parts: list[GgufHeader]) -> dict[str, LocatedTensor]:
    located: dict[str, LocatedTensor] = {}
    for part in parts:
        twice = sorted(located.keys() & part.tensors.keys())
        if twice:
            raise bad(part.file, f"the tensor `{shown(twice[0])}` stands in two parts")
        located.update(part.tensors)
    expected = parts[0].metadata.get("split.tensors.count", len(located))
    if expected != len(located):
        raise bad(
            parts[0].file, f"`split.tensors.count` expects {expected} tensors, got {len(located)}"
        )
    return located
