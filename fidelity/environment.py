"""The environment report of Law 6: the stack that produced the numbers, without a credential."""

import os
import platform
import subprocess
import sys
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any

import cke
from cke.fidelity.redact import redact, watched
from cke.fidelity.settings import compiled_extensions_sha256, instruction_set, stack_profile


def environment_report(checkpoints: dict[str, str], captured_at: str) -> dict[str, Any]:
    """Return the report; `checkpoints` are the digests of every model involved, by name."""
    report = {
        "kind": "cke-fidelity-environment",
        "captured_at": captured_at,
        "stack_profile": stack_profile(),
        "host": platform.node(),
        "kernel": f"{platform.system()} {platform.release()}",
        "processor": {
            "instruction_set": instruction_set(),
            "threads": len(os.sched_getaffinity(0)),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        },
        "interpreter": {"version": sys.version, "executable": sys.executable},
        "versions": {
            "cke": cke.__version__,
            **{name: version(name) for name in ("jax", "jaxlib", "numpy", "ml_dtypes")},
        },
        "compiled_extensions_sha256": compiled_extensions_sha256(),
        "commit": head_commit(),
        "worktree": worktree_state(),
        "packages": installed_packages(),
        "variables": watched(os.environ),
        "checkpoints": checkpoints,
        **accelerator_facts(),
    }
    cleaned: dict[str, Any] = redact(report)
    return cleaned


def installed_packages() -> dict[str, str]:
    """Return every installed distribution with its version."""
    found = {str(item.metadata["Name"]): item.version for item in distributions()}
    return dict(sorted(found.items()))


def _source() -> Path:
    return Path(cke.__file__).resolve().parent


def head_commit() -> str | None:
    """Return the commit of the source tree that runs, None outside of one."""
    return _git("rev-parse", "HEAD")


def worktree_state() -> str | None:
    """Return whether the source tree that runs is clean, None outside of one."""
    found = _git("status", "--porcelain")
    return None if found is None else "dirty" if found else "clean"


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(_source()), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


ACCELERATOR = {
    "accelerators": "name",
    "driver": "driver_version",
    "vbios": "vbios_version",
    "ecc": "ecc.mode.current",
    "persistence": "persistence_mode",
    "clocks": "clocks.max.sm",
}


def accelerator_facts() -> dict[str, Any]:
    """Return what the driver's own tool says of the accelerators; nothing on a CPU stack."""
    if stack_profile() == "jax-cpu":
        return {}
    query = ",".join(ACCELERATOR.values())
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    return {name: [row[i] for row in rows] for i, name in enumerate(ACCELERATOR) if rows}
