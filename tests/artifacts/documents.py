"""Artifacts of the seeded runtime as parsed JSON, and their mutation by path."""

import copy
import functools
from pathlib import Path
from typing import Any

import pytest

from cke.artifacts.engine import Execution, RunRequest
from cke.artifacts.execute import execute
from cke.artifacts.seeded import Fault, SeededEngine
from cke.errors import CkeError

PATH = Path("artifact.json")
REQUEST = RunRequest(tokens=(3, 5, 7), generate=8, checkpoint_step=3, intra_layer=2)
PLAIN = RunRequest(tokens=(3, 5, 7), generate=8)
DELETE = object()


@functools.cache
def run(request: RunRequest = REQUEST, fault: Fault | None = None) -> Execution:
    """One execution; the same request gives the same one."""
    return execute(SeededEngine(fault=fault), request)


def document(kind: str, request: RunRequest = REQUEST) -> Any:
    """A fresh copy of a run's artifact."""
    return copy.deepcopy(run(request).documents()[kind])


def put(value: Any, path: str, new: Any) -> Any:
    """Set `a.b.0.c` of a document, or remove it."""
    *parents, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
    holder = value
    for part in parents:
        holder = holder[part]
    if new is DELETE:
        del holder[last]
    elif isinstance(holder, list) and last == len(holder):
        holder.append(new)
    else:
        holder[last] = new
    return value


def refused(load: Any, value: Any, text: str = "") -> None:
    """Load a document and see it refused, with the text."""
    with pytest.raises(CkeError) as caught:
        load(value, PATH)
    assert text in str(caught.value)
