"""Candidates by llama.cpp's own quantiser: a model folder or GGUF file to a GGUF file.

The K formats are mixtures: llama.cpp gives some tensors more bits, and rows that 256 does not
divide one of the older formats of about the same size. Which tensor got which is in the file.
"""

import ctypes
import tempfile
from pathlib import Path

from cke.errors import CkeError, Diagnostic
from cke.oracles.gguf_writer import write_gguf

FILE_TYPES = {
    "q4_0": 2,
    "q8_0": 7,
    "q2_k": 10,
    "q3_k_m": 12,
    "q4_k_s": 14,
    "q4_k_m": 15,
    "q5_k_s": 16,
    "q5_k_m": 17,
    "q6_k": 18,
}
"""llama.cpp's file types by name."""
K_FORMATS = tuple(name for name in FILE_TYPES if name[-2:] != "_0")


def quantise_gguf(source: Path, kind: str, target: Path, threads: int = 2) -> Path:
    """Write `source` in a K format to the new file `target`; CKE714 where llama.cpp cannot."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        plain = write_gguf(source, Path(scratch) / "f32.gguf") if source.is_dir() else source
        made = Path(scratch) / "made.gguf"
        if _quantise(plain, made, FILE_TYPES[kind], threads) != 0:
            raise CkeError(
                Diagnostic(
                    code="CKE714",
                    file=source.name,
                    message=f"llama.cpp does not quantise this model to `{kind}`",
                )
            )
        made.replace(target)
    return target


def _quantise(source: Path, target: Path, kind: int, threads: int) -> int:
    import llama_cpp

    from cke.oracles.ggml import QUIET

    llama_cpp.llama_log_set(QUIET, None)
    llama_cpp.llama_backend_init()
    settings = llama_cpp.llama_model_quantize_default_params()
    settings.ftype = kind
    settings.nthread = threads
    settings.allow_requantize = True
    names = (str(source).encode(), str(target).encode())
    return int(llama_cpp.llama_model_quantize(*names, ctypes.byref(settings)))
