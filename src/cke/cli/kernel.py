"""`cke kernel promote`: a candidate takes the place of a provider, if its evidence allows it."""

from pathlib import Path
from typing import Any

from cyclopts import App

from cke.cli.evidence import request_of
from cke.cli.output import Format, Output, choose, deliver, encode_json, progress

app = App(name="kernel", help="Promote a candidate to the provider that is preferred.")


@app.command(name="promote")
def promote(
    kernel: str,
    /,
    *,
    model: Path,
    out: Path,
    oracle: str = "reference",
    circuit: str | None = None,
    dtype: str = "float32",
    tokens: str = "",
    steps: str = "",
    epsilon: float = 1e-12,
    write: bool = False,
    format: Format = "human",
    output: Output = None,
) -> int:
    """Measure a candidate against the provider it would replace, row by row; no row may regress.

    Writes gate.json and the traces of both runs. Exit code 0 says that it may be promoted, 1 that
    it may not.

    Parameters
    ----------
    kernel: the id of a kernel in lifecycle candidate.
    model: the model folder or .gguf file to run under both providers.
    out: the folder to write the gate and its captures to.
    oracle: reference, pytorch or llamacpp.
    circuit: a library circuit or a .circuit file; by default the family of the model's config.
    dtype: float32 or bfloat16.
    tokens: the prompt's token IDs; rows of a batch are separated by `;`.
    steps: forced tokens of the decode steps, as `ids of step 1; ids of step 2`.
    epsilon: how much a row may regress in relative RMSE or max_abs.
    write: edit the contract of a kernel that may be promoted, and keep its gate as evidence.
    """
    renderers: dict[str, Any] = {
        "human": lambda: told(gate),
        "json": lambda: encode_json(document_of(gate)),
    }
    choose(format, renderers)
    from cke.api.promote import document_of, write_promotion
    from cke.api.promote import promote as run
    from cke.xray.provider_gate import told

    progress(f"running {model} under both providers")
    gate: Any = run(
        kernel,
        model,
        oracle=oracle,
        out=out,
        circuit=circuit,
        dtype=dtype,
        request=request_of(tokens, steps) if tokens else None,
        epsilon=epsilon,
    )
    deliver(format, output, renderers)
    if gate.promoted and write:
        for path in write_promotion(gate):
            progress(f"written: {path}")
        progress("`cke build --library` writes the packages anew")
    elif write:
        progress("nothing is written: the gate refuses")
    return 0 if gate.promoted else 1
