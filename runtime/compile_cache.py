"""Compiled programs are kept between runs, in the user's cache folder."""

import os

import jax

from cke.errors.files import cache_folder

VARIABLE = "JAX_COMPILATION_CACHE_DIR"


def keep_compiled_programs() -> None:
    """Keep every compiled program, however small and quick; a folder of the user's own wins."""
    if os.environ.get(VARIABLE) or jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        return
    folder = cache_folder("compiled")
    folder.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
