"""`cke oracle` and `cke oracle import`: the other side, run live or read from a dump."""

from pathlib import Path
from typing import Any

from cyclopts import App

from cke.cli.evidence import one_input, request_of, with_pixels

oracle_app = App(help="Capture what a reference implementation computes for the same tokens.")


@oracle_app.default
def oracle(
    *,
    model: Path,
    oracle: str,
    tokens: str = "",
    pixels: Path | None = None,
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
    pixels: for an encoder of images, a .npy file of what its image processor returns.
    out: the trace folder to write.
    dtype: float32, bfloat16 or float16.
    steps: forced tokens of the decode steps, as `ids of step 1; ids of step 2`.
    segments: end columns of the prefill forwards, for a chunked prefill.
    """
    from cke.api.oracle_evidence import measured_oracle

    one_input(tokens, "", pixels)
    request = _given(model, None, pixels, request_of(tokens or "0", steps, segments))
    trace, facts = measured_oracle(model, oracle, request, out, dtype=dtype)
    return _told(trace, facts, out)


@oracle_app.command(name="import")
def import_(
    dump: Path,
    *,
    model: Path,
    tokens: str = "",
    pixels: Path | None = None,
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
    pixels: for an encoder of images, the .npy file that the dump was made with.
    out: the trace folder to write.
    mapping: the TOML file that says which tensor is which checkpoint; see `cke schema
        cke.oracle_mapping`. A dump of the model debugger needs none.
    circuit: a library circuit or a .circuit file; by default the family of the model's config.
    steps: forced tokens of the decode steps, as `ids of step 1; ids of step 2`.
    segments: end columns of the prefill forwards, for a chunked prefill.
    """
    from cke.api.oracle_evidence import import_dump

    one_input(tokens, "", pixels)
    request = _given(model, circuit, pixels, request_of(tokens or "0", steps, segments))
    trace, facts = import_dump(dump, model, request, out, mapping=mapping, circuit=circuit)
    return _told(trace, facts, out)


def _given(model: Path, circuit: str | None, pixels: Path | None, request: Any) -> Any:
    """Return the request, with the images of a file where one is given."""
    if pixels is None:
        return request
    from cke.api.build import built_package
    from cke.runtime.weights.files import open_model

    manifest = built_package(open_model(model), circuit, "f32").manifest
    return with_pixels(request, manifest, pixels)


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
