"""Build the wheel and the sdist, and try the wheel in a fresh environment, from another folder.

The wheel is built from the sdist, so that both are whole. The environment holds the core
dependencies alone: no JAX, no torch.
"""

import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (
    "artifacts attention_packet circuits codegen dsl fidelity generated kernel_registry oracles "
    "runtime validator viewer xray"
).split()


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command outside the repository, or end with what it said; return its stdout."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"`{' '.join(map(str, command))}` failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def tracked_files() -> set[str]:
    """Every file that the wheel must hold, as its path in the wheel."""
    listed = run("git", "-C", ROOT, "ls-files", "--", *FOLDERS, "src/cke", cwd=ROOT).split()
    files = {path for path in listed if ROOT.joinpath(path).is_file()}
    return {p.removeprefix("src/") if p.startswith("src/") else f"cke/{p}" for p in files}


def main() -> None:
    """Build, compare the contents with the repository, install, and use."""
    with tempfile.TemporaryDirectory(prefix="cke-wheel-") as name:
        folder = Path(name)
        print("==> building the sdist and, from it, the wheel", flush=True)
        pip = (sys.executable, "-m", "pip")
        run(sys.executable, "-m", "build", "--quiet", "--outdir", folder / "dist", ROOT, cwd=folder)
        [wheel] = (folder / "dist").glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            missing = tracked_files() - set(archive.namelist())
        if missing:
            sys.exit(f"the wheel lacks {', '.join(sorted(missing))}")
        print(f"==> trying {wheel.name} from another folder", flush=True)
        venv.create(folder / "env", with_pip=True)
        python = folder / "env" / "bin" / "python"
        run(python, *pip[1:], "install", "-q", "-c", ROOT / "constraints.txt", wheel, cwd=folder)
        bin_folder = python.parent
        run(python, "-c", "import cke, sys; assert 'jax' not in sys.modules", cwd=folder)
        assert "Environment" in run(bin_folder / "cke", "--help", cwd=folder)
        circuit = run(
            python, "-c", "import cke.circuits as c; print(c.__path__[0])", cwd=folder
        ).strip()
        run(bin_folder / "cke", "check", Path(circuit) / "llama.circuit", cwd=folder)
        print("==> the wheel works: import cke, cke --help, cke check of a packaged circuit")


if __name__ == "__main__":
    main()
