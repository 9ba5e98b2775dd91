"""Study the neutrality of captures: `python tools/neutrality_study.py MODEL… [--dtype bfloat16]`.

Prints one line per model, driver and phase, and with `--out` writes a report per model.
"""

import argparse
import sys
from pathlib import Path

from cke.api.neutrality import neutrality_of
from cke.errors.files import write_atomically
from cke.schemas.reading import to_json


def main(arguments: list[str]) -> int:
    """Study every model; 0 when each is neutral, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--inputs", type=int, default=20)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    neutral = True
    for model in given.models:
        study = neutrality_of(model, given.dtype, given.inputs)
        neutral = neutral and study.neutral
        for cell in study.cells:
            print(
                f"{study.circuit:<18} {study.dtype:<5} {cell.driver:<11} {cell.phase:<8} "
                f"neutral {cell.neutral}/{cell.inputs}, repeatable {cell.repeatable}, "
                f"drivers agree {study.drivers_agree}, differing {list(cell.differing)[:4]}",
                flush=True,
            )
        if given.out is not None:
            name = f"{study.circuit.partition('@')[0]}-{study.dtype}.json"
            write_atomically(given.out / name, to_json(study))
    return 0 if neutral else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
