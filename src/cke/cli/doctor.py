"""`cke doctor`: what this machine offers, what is missing, and the command that brings it."""

import importlib.metadata
import os
import platform
import shutil
from pathlib import Path

import msgspec

import cke
from cke.cli.output import Format, Output, deliver, encode_json
from cke.errors.files import cache_folder

PACKAGES = (
    ("jax", "jax", "run a model"),
    ("jaxlib", "jax", "run a model"),
    ("safetensors", "jax", "read model folders"),
    ("gguf", "jax", "read GGUF files"),
    ("tokenizers", "jax", "turn text into tokens"),
    ("torch", "torch", "compare with PyTorch"),
    ("transformers", "torch", "compare with PyTorch"),
    ("llama-cpp-python", "llamacpp", "compare with llama.cpp"),
    ("pygls", "lsp", "serve an editor"),
)
"""Optional packages: distribution, the extra that brings it, and what it is for."""

FEATURES = ("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "amx_tile", "asimd", "sve")
VARIABLES = ("XLA_FLAGS", "JAX_PLATFORMS", "JAX_COMPILATION_CACHE_DIR", "CKE_CACHE_DIR")


class Package(msgspec.Struct, frozen=True):
    """An optional package: its installed version, or None and the command that installs it."""

    name: str
    version: str | None
    purpose: str
    install: str | None


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """What `cke doctor` found; sizes are in bytes."""

    cke: str
    python: str
    platform: str
    processor: str
    cores: int
    features: tuple[str, ...]
    memory: int | None
    compiler: str | None
    cache_folder: str
    cache_writable: bool
    cache_free: int | None
    variables: dict[str, str]
    packages: tuple[Package, ...]

    @property
    def healthy(self) -> bool:
        """Whether CKE can run a model here."""
        needed = [
            package for package in self.packages if package.install and "jax" in package.install
        ]
        return self.cache_writable and not needed


def doctor(*, format: Format = "human", output: Output = None) -> int:
    """Show the environment: versions, processor, caches, and what is missing.

    Exits with 0 when a model can run here, with 3 when a package that running needs is missing.
    """
    found = examine()
    deliver(
        format,
        output,
        {"human": lambda: describe(found), "json": lambda: encode_json(found)},
    )
    return 0 if found.healthy else 3


def examine() -> Environment:
    """Look at the machine without importing any of the heavy packages."""
    folder = cache_folder()
    processor, features = _processor()
    return Environment(
        cke=cke.__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        processor=processor,
        cores=os.cpu_count() or 1,
        features=features,
        memory=_memory(),
        compiler=shutil.which("c++") or shutil.which("g++") or shutil.which("clang++"),
        cache_folder=str(folder),
        cache_writable=_writable(folder),
        cache_free=_free(folder),
        variables={name: os.environ[name] for name in VARIABLES if name in os.environ},
        packages=tuple(_package(*row) for row in PACKAGES),
    )


def _package(name: str, extra: str, purpose: str) -> Package:
    try:
        return Package(name, importlib.metadata.version(name), purpose, None)
    except importlib.metadata.PackageNotFoundError:
        return Package(name, None, purpose, f"pip install 'cke[{extra}]'")


def _processor() -> tuple[str, tuple[str, ...]]:
    """The processor's name and those of its features that matter to the kernels."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine(), ()
    rows = [line.partition(":") for line in text.splitlines()]
    fields = {key.strip().lower(): value.strip() for key, _, value in rows}
    flags = set(fields.get("flags", fields.get("features", "")).split())
    return fields.get("model name", platform.machine()), tuple(f for f in FEATURES if f in flags)


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _nearest(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def _writable(folder: Path) -> bool:
    return os.access(_nearest(folder), os.W_OK)


def _free(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(_nearest(folder)).free
    except OSError:
        return None


def describe(found: Environment) -> str:
    """The environment as aligned text, then what is missing and how to get it."""
    rows = [
        ("cke", found.cke),
        ("python", found.python),
        ("platform", found.platform),
        ("processor", f"{found.processor}, {found.cores} cores"),
        ("features", " ".join(found.features) or "unknown"),
        ("memory", _size(found.memory)),
        ("compiler", found.compiler or "none (only needed to build llama-cpp-python)"),
        ("cache", f"{found.cache_folder} ({_size(found.cache_free)} free)"),
        *found.variables.items(),
        *((package.name, package.version or "missing") for package in found.packages),
    ]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {value}" for name, value in rows]
    missing = [package for package in found.packages if package.install]
    if not found.cache_writable:
        lines += ["", "the cache folder cannot be written; set CKE_CACHE_DIR to one that can"]
    if missing:
        lines += ["", "missing:"]
        lines += [f"  {p.name}, to {p.purpose}: {p.install}" for p in missing]
    return "\n".join(lines)


def _size(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 2**30:.1f} GiB"
