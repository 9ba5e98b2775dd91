"""A bug of ours ends in exit code 70, a crash file, and one line that says where it is."""

import sys
from collections.abc import Sequence
from types import TracebackType

import cke


class CrashGuard:
    """A context that turns an unexpected exception into exit code 70 and a crash file.

    `SystemExit` and the other exceptions that are not errors pass through. `CKE_DEBUG=1` prints
    the traceback as well.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self.arguments = tuple(arguments)
        self.exit_code = 0

    def __enter__(self) -> "CrashGuard":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        import hashlib

        from cke.errors.files import cache_folder, write_atomically

        text = crash_text(self.arguments, error)
        name = f"crash-{hashlib.sha256(text.encode()).hexdigest()[:12]}.txt"
        path = cache_folder("crashes") / name
        try:
            write_atomically(path, text.encode())
            where = f"details are in {path}"
        except OSError as failure:
            where = f"no crash file could be written ({failure})\n{text}"
        summary = " ".join(str(error).split())[:200]
        print(f"internal error: {type(error).__name__}: {summary}; {where}", file=sys.stderr)
        self.exit_code = 70
        return True


def crash_text(arguments: Sequence[str], error: Exception) -> str:
    """What a bug report needs: versions, the command line, and the traceback with its notes."""
    import platform
    import traceback

    lines = [
        f"cke {cke.__version__}",
        f"python {platform.python_version()} on {platform.platform()}",
        f"command: cke {' '.join(arguments)}",
        "",
        *traceback.format_exception(error),
    ]
    return "\n".join(line.rstrip("\n") for line in lines) + "\n"
