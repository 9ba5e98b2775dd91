"""The coverage-guided run: `python -m tests.attention_packet.fuzz TARGET FOLDER [FLAGS]`.

`bytes` feeds the input as packet.json; `values` lets it choose places of both documents and the
values that go there, with lengths and hashes made right again. Needs atheris; the flags are its.
"""

import copy
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["cke.attention_packet", "cke.schemas.reading"]):
    from tests.attention_packet.fuzz_reader import EXAMPLE, fuzz_bytes, fuzz_values


def main() -> None:
    """Fuzz one target in a folder that is not there yet, or empty."""
    target, folder = sys.argv[1], Path(sys.argv[2])
    path = copy.deepcopy(EXAMPLE).write(folder / "packet")
    corpus = folder / "corpus"
    corpus.mkdir()
    seed = path.read_bytes() if target == "bytes" else bytes(range(18))
    corpus.joinpath("seed").write_bytes(seed)
    run = {"bytes": fuzz_bytes, "values": fuzz_values}[target]
    atheris.Setup([sys.argv[0], *sys.argv[3:], str(corpus)], lambda data: run(path.parent, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
