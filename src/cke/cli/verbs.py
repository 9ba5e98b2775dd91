"""The table of verbs: where each lives, and its one line in `cke --help`.

`target` is `module:attribute`, a function or an `App`; it is imported when the verb is used.
"""

from typing import NamedTuple


class Verb(NamedTuple):
    """A row: the group in the help page, the import path, and the help line."""

    group: str
    target: str
    help: str


VERBS: dict[str, Verb] = {
    "new": Verb("Author", "cke.cli.author:new", "Write a first circuit for a model's config."),
    "check": Verb("Author", "cke.cli.author:check", "Check circuits, alone or against a model."),
    "fmt": Verb("Author", "cke.cli.author:fmt", "Bring circuit files into their canonical form."),
    "expand": Verb("Author", "cke.cli.author:expand", "Print a circuit with all that it inherits."),
    "explain": Verb(
        "Author", "cke.cli.author:explain", "Explain a diagnostic code, a circuit, or a kernel."
    ),
    "lsp": Verb("Author", "cke.cli.lsp:lsp", "Serve editors: diagnostics, hover, formatting."),
    "build": Verb(
        "Compile", "cke.cli.build:build", "Generate the code and manifest of a circuit for a model."
    ),
    "dump": Verb("Compile", "cke.cli.build:dump", "Print one level of a circuit, one op a line."),
    "run": Verb(
        "Run", "cke.cli.run:run", "Generate tokens with a model, through its generated code."
    ),
    "bench": Verb(
        "Environment",
        "cke.cli.bench:bench",
        "Measure speed, start and memory, beside transformers and llama.cpp.",
    ),
    "weights": Verb(
        "Run",
        "cke.cli.weights:weights",
        "Show every weight of a model with its tensor, and every tensor with its use.",
    ),
    "doctor": Verb(
        "Environment",
        "cke.cli.doctor:doctor",
        "Show the environment: versions, processor, caches, and what is missing.",
    ),
    "cache": Verb(
        "Environment", "cke.cli.cache:app", "List, measure and clear what CKE keeps in the cache."
    ),
    "schema": Verb(
        "Environment", "cke.cli.schema:schema", "Print the JSON Schema of an on-disk format."
    ),
    "packet": Verb("Evidence", "cke.cli.packet:app", "Analyse, export and show attention packets."),
    "trace": Verb(
        "Evidence",
        "cke.cli.evidence:trace_app",
        "Capture what a model computes, or compare two captures.",
    ),
    "probe": Verb(
        "Evidence",
        "cke.cli.probe:probe",
        "Run the inputs that a circuit's own structure asks for.",
    ),
    "inspect": Verb(
        "Evidence",
        "cke.cli.inspect:inspect",
        "Show a run report, or the perf lines of a run, on one screen.",
    ),
    "verify": Verb(
        "Evidence",
        "cke.cli.verify:app",
        "Compare two runtimes on the same tokens, down to a stage of a layer.",
    ),
    "fidelity": Verb(
        "Evidence",
        "cke.cli.fidelity:app",
        "Measure how closely a candidate keeps a reference's distributions, under the laws.",
    ),
    "oracle": Verb(
        "Evidence",
        "cke.cli.oracle:oracle_app",
        "Capture what a reference implementation computes for the same tokens.",
    ),
    "xray": Verb(
        "Evidence",
        "cke.cli.xray:app",
        "Find the first divergent edge of a model, its cause and its owner.",
    ),
    "kernel": Verb(
        "Evidence",
        "cke.cli.kernel:app",
        "Promote a candidate to the provider that is preferred.",
    ),
    "validate": Verb(
        "Evidence",
        "cke.cli.validate:validate",
        "Inject known faults and score what X-Ray says of them.",
    ),
}
