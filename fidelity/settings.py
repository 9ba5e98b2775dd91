"""What decides a number beside model and tokens: determinism settings and the runtime's identity.

Both are read from the live process, never from a request; a capture binds itself to them.
"""

import os
import platform
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import jax
import msgspec

from cke.fidelity.digests import framed_sha256, weights_sha256
from cke.runtime.package import Package

Mode = Literal["eager", "compiled"]
BLOCK = 64
"""Positions whose logits exist at once; part of the geometry, since a matmul's bits follow it."""
SCORER = (
    *("capture.py", "digests.py", "head.py", "kld.py", "routing.py", "score.py", "settings.py"),
    *("statistics.py", "subject.py", "candidates.py", "candidate_formats.py", "capture_reader.py"),
    "integer_activations.py",
)
"""The files of this package that can reach a number; pages and receipts cannot."""
PROCESS = uuid4().hex
"""This process, as captures and reports name it: who took the one did not score the other."""
DTYPES = {"f32": "float32", "bf16": "bfloat16"}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The determinism settings of a run; `authoritative` only where nothing is compiled whole."""

    enforce_eager: bool
    authoritative: bool
    enable_prefix_caching: bool
    max_num_seqs: int
    autotuned_kernels: bool
    jit_kernel_selection: bool
    device_graphs: bool
    tensor_parallel_size: int
    kv_cache_dtype: str
    compute_dtype: str
    model_runner: str
    block_positions: int


def live_settings(mode: Mode, dtype: str) -> Settings:
    """Return the settings of a run of that mode in this process."""
    flags = os.environ.get("XLA_FLAGS", "")
    autotuned = jax.default_backend() != "cpu" and "--xla_gpu_autotune_level=0" not in flags
    return Settings(
        enforce_eager=mode == "eager",
        authoritative=mode == "eager",
        enable_prefix_caching=False,
        max_num_seqs=1,
        autotuned_kernels=autotuned,
        jit_kernel_selection=mode != "eager",
        device_graphs=False,
        tensor_parallel_size=1,
        kv_cache_dtype=DTYPES[dtype],
        compute_dtype=DTYPES[dtype],
        model_runner=f"cke-{mode}",
        block_positions=BLOCK,
    )


def runtime_identity(package: Package) -> dict[str, Any]:
    """Return what computed a number; the commit is not part of it."""
    devices = jax.devices()
    return {
        "stack_profile": stack_profile(),
        "numerics_digest": numerics_digest(package),
        "compiled_extensions_sha256": compiled_extensions_sha256(),
        "jax": version("jax"),
        "jaxlib": version("jaxlib"),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "instruction_set": instruction_set(),
        "driver": driver_version(),
        "gpu_names": [device.device_kind for device in devices if device.platform != "cpu"],
        "mesh": [device.platform for device in devices],
        "threads": len(os.sched_getaffinity(0)),
    }


def stack_profile() -> str:
    """Return the name of the stack profile of this process."""
    return "jax-cpu" if jax.default_backend() == "cpu" else "jax-cuda"


def driver_version() -> str | None:
    """Return the accelerator driver's version, None where no accelerator takes part."""
    if jax.default_backend() == "cpu":
        return None
    path = Path("/sys/module/nvidia/version")
    return path.read_text().strip() if path.is_file() else ""


def numerics_digest(package: Package) -> str:
    """Return the digest of every source that can reach a number, by label and content."""
    parts = [*_sources("cke.runtime"), *_sources("cke.kernel_registry")]
    scorer = files("cke.fidelity")
    parts += [(f"scorer/{name}", _read(scorer, name)) for name in SCORER]
    assert package.folder is not None, "a package that scores is on disk"
    parts += [
        (f"package/{path.name}", path.read_bytes()) for path in sorted(package.folder.glob("*.py"))
    ]
    return framed_sha256(sorted(parts))


def _read(folder: Traversable, name: str) -> bytes:
    return folder.joinpath(name).read_bytes()


def _sources(package: str) -> list[tuple[str, bytes]]:
    return sorted(_walk(files(package), package))


def _walk(folder: Traversable, label: str) -> Iterator[tuple[str, bytes]]:
    for item in folder.iterdir():
        if item.is_dir() and item.name != "__pycache__":
            yield from _walk(item, f"{label}/{item.name}")
        elif item.name.endswith(".py"):
            yield f"{label}/{item.name}", item.read_bytes()


@cache
def compiled_extensions_sha256() -> str:
    """Return the digest of the compiled libraries of jaxlib."""
    import jaxlib

    return weights_sha256(Path(jaxlib.__path__[0]).rglob("*.so*"))


@cache
def instruction_set() -> str:
    """Return the processor's model and the digest of the instructions that it offers."""
    path = Path("/proc/cpuinfo")
    if not path.is_file():
        return platform.machine()
    lines = dict.fromkeys(path.read_text().splitlines())
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    flags = [line for line in lines if line.startswith(("flags", "Features"))]
    digest = framed_sha256([("flags", "".join(flags).encode())])[:16]
    return f"{platform.machine()} {named[0] if named else 'unnamed'} {digest}"
