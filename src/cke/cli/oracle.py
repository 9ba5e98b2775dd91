"""`cke oracle` and `cke oracle import`: the other side, run live or read from a dump."""

from pathlib import Path
from typing import Any

from cyclopts import App

from cke.cli.evidence import request_of

oracle_app = App(help="Capture what a reference implementation computes for the same tokens.")


@oracle_app.default
def oracle(
    *,
    model: Path,
    oracle: str,
    tokens: str,
    out: Path,
    dtype: str = "float32",
    steps: str = "",
    segments: str = "",
) -> int:
    """Run an oracle on token IDs and write its trace, in the format of `cke trace`.

    What the oracle declares of itself is measured on its tensors and process; a contradiction is
    printed, and the exit code is 4.

    Parameters
    ----------
    model: the model folder or .gguf file.
    oracle: pytorch, llamacpp or reference, or a trace folder that was recorded before.
    tokens: the prompt's token IDs; rows of a batch are separated by `;`.
    out: the trace folder to write.
    dtype: float32, bfloat16 or float16.
    steps: forced tokens of the decode steps, as `ids of step 1; ids of step 2`.
    segments: end columns of the prefill forwards, for a chunked prefill.
    """
    from cke.api.oracle_evidence import measured_oracle

    request = request_of(tokens, steps, segments)
    trace, facts = measured_oracle(model, oracle, request, out, dtype=dtype)
    return _told(trace, facts, out)


@oracle_app.command(name="import")
def import_(
    dump: Path,
    *,
    model: Path,
    tokens: str,
    out: Path,
    mapping: Path | None = None,
    circuit: str | None = None,
    steps: str = "",
    segments: str = "",
) -> int:
    """Write a dump that was made elsewhere as an oracle's trace.

    Parameters
    ----------
    dump: a folder of .npy, .pt or .safetensors files, or a dump of transformers' model debugger.
    model: the model folder or .gguf file that the dump was made of.
    tokens: the token IDs that the dump was made with; rows are separated by `;`.
    out: the trace folder to write.
    mapping: the TOML file that says which tensor is which checkpoint; see `cke schema
        cke.oracle_mapping`. A dump of the model debugger needs none.
    circuit: a library circuit or a .circuit file; by default the family of the model's config.
    steps: forced tokens of the decode steps, as `ids of step 1; ids of step 2`.
    segments: end columns of the prefill forwards, for a chunked prefill.
    """
    from cke.api.oracle_evidence import import_dump

    request = request_of(tokens, steps, segments)
    trace, facts = import_dump(dump, model, request, out, mapping=mapping, circuit=circuit)
    return _told(trace, facts, out)


def _told(trace: Any, facts: Any, out: Path) -> int:
    body = trace.body
    print(f"{len(body.records)} captures of {body.producer.name} {body.producer.version} in {out}")
    if body.producer.declared:
        print(f"declared, not measured: {', '.join(body.producer.declared)}")
    measured = ", ".join(f"{fact} {count}" for fact, count in facts.checked.items() if count)
    print(f"measured: {measured or 'nothing'}; {len(facts.findings)} contradict what is declared")
    for finding in facts.findings:
        print(f"  {finding}")
    return 4 if facts.findings or body.neutrality.status == "rejected" else 0
