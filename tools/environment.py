"""Make `.venv` hold what a target needs, and say what is being done; reuse it when unchanged.

    python3.11 tools/environment.py demo|test

`demo` is what running a model needs; `test` adds the oracles and the development tools.
llama-cpp-python is only published as source: its wheel is built once (6 to 13 minutes on two
cores), with the processor's features named one by one, and kept in the user's cache folder.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
EXTRAS = {"demo": "jax", "test": "jax,torch,lsp,dev,docs"}
LLAMACPP = "llama-cpp-python==0.3.36"
TORCH = "torch==2.13.0"
FEATURES = {"avx": "AVX", "avx2": "AVX2", "fma": "FMA", "f16c": "F16C", "bmi2": "BMI2"}
"""Processor flags by the name of their build option; AVX-512 and AMX stay off on purpose."""


def say(message: str) -> None:
    """Print one line of progress."""
    print(f"==> {message}", flush=True)


def run(*command: str | Path, **variables: str) -> None:
    """Run a command from the root of the repository, or end with its exit code."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **variables},
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        say(f"`{' '.join(str(part) for part in command)}` failed")
        sys.exit(done.returncode)


def pip(*arguments: str | Path, **variables: str) -> None:
    """Run the pip of `.venv`, quietly."""
    run(PYTHON, "-m", "pip", *arguments, "--quiet", "--no-input", **variables)


def fingerprint(profile: str) -> str:
    """What the environment depends on, as a hash."""
    digest = hashlib.sha256(f"{profile} {sys.version} {ROOT}".encode())
    for name in ("pyproject.toml", "constraints.txt", "tools/environment.py"):
        digest.update(ROOT.joinpath(name).read_bytes())
    return digest.hexdigest()


def is_current(profile: str) -> bool:
    """Whether `.venv` was made for this profile, or for a larger one, from the same files."""
    larger = ("demo", "test") if profile == "demo" else ("test",)
    stamps = [VENV / f".cke-{name}" for name in larger]
    return any(
        s.is_file() and s.read_text() == fingerprint(n) for n, s in zip(larger, stamps, strict=True)
    )


def prepare(profile: str) -> None:
    """Make `.venv` whole for the profile; a stamp is written last."""
    if is_current(profile):
        say(f".venv is up to date for `{profile}`")
        return
    if not PYTHON.exists():
        say("making .venv")
        run(sys.executable, "-m", "venv", VENV)
    if profile == "test":
        say("installing torch (about 200 MB in its processor-only build)")
        pip("install", TORCH)
    say(f"installing cke with {EXTRAS[profile]}")
    pip("install", "-c", "constraints.txt", "-e", f".[{EXTRAS[profile]}]")
    if profile == "test":
        pip("install", "-c", "constraints.txt", "diskcache", llamacpp_wheel())
    VENV.joinpath(f".cke-{profile}").write_text(fingerprint(profile))


def llamacpp_wheel() -> Path:
    """The wheel of llama-cpp-python for this processor, from the cache or built now."""
    options = build_options()
    key = hashlib.sha256(f"{LLAMACPP} {options} {platform.platform(terse=True)}".encode())
    folder = user_cache() / "wheels" / key.hexdigest()[:16]
    found = sorted(folder.glob("*.whl"))
    if found:
        say(f"using the built {LLAMACPP} in {folder}")
        return found[0]
    say(f"building {LLAMACPP}; this takes 6 to 13 minutes, once")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".building.", dir=folder.parent) as scratch:
        out = Path(scratch) / "wheel"
        command = ("wheel", "--no-deps", "--no-cache-dir", "--no-binary", "llama-cpp-python")
        pip(*command, "-w", out, LLAMACPP, CMAKE_ARGS=options)
        shutil.rmtree(folder, ignore_errors=True)
        out.rename(folder)
    return sorted(folder.glob("*.whl"))[0]


def build_options() -> str:
    """CMake options that name this processor's features, instead of `-march=native`."""
    try:
        flags = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        flags = set()
    options = ["-DGGML_NATIVE=OFF", "-DLLAVA_BUILD=OFF", "-DGGML_OPENMP=OFF"]
    if platform.machine() in ("x86_64", "AMD64"):
        options += [f"-DGGML_{o}={'ON' if f in flags else 'OFF'}" for f, o in FEATURES.items()]
    return " ".join(options)


def user_cache() -> Path:
    """The user's cache folder for CKE, as `platformdirs` names it, without needing it."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "cke"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cke"


if __name__ == "__main__":
    if sys.argv[1:] not in (["demo"], ["test"]):
        sys.exit("expected `demo` or `test`")
    prepare(sys.argv[1])
