"""The verbs of an author of circuits: check, fmt, expand, new and explain."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cke.cli.output import Format, Output, deliver, encode_json, render_diagnostics
from cke.errors import CkeError, Diagnostic, MissingInputError, Note
from cke.errors.files import write_atomically

ModelPath = Annotated[
    Path | None, Parameter(help="A model folder, a .gguf file, or a config.json.")
]


def check(
    *files: Path,
    config: ModelPath = None,
    model: ModelPath = None,
    format: Format = "human",
    output: Output = None,
) -> int:
    """Check circuits: names, axes, points, numerics; with a model, its config and weights too.

    Parameters
    ----------
    files
        Circuit files; a file without a `circuit` line is parsed.
    """
    if not files:
        raise _usage("expected FILE…", "check")
    source_path = model or config
    problems: list[Diagnostic] = []
    for path in files:
        try:
            _check_file(path, source_path)
        except MissingInputError:
            raise
        except CkeError as error:
            problems += [item for item in error.diagnostics if item not in problems]
    found = tuple(problems)
    text = render_diagnostics(found, format)
    if format == "human" and not found:
        text = "\n".join(f"{path}: ok" for path in files)
    deliver(format, output, {format: lambda: text})
    return 2 if found else 0


def _check_file(path: Path, model: Path | None) -> None:
    from cke.dsl.check import check_circuit
    from cke.dsl.flatten import circuit_head
    from cke.dsl.library import read_file, start
    from cke.dsl.resolve import load_circuit

    where, shown, _ = start(path)
    if circuit_head(read_file(where, shown)) is None:
        return
    circuit = load_circuit(path)
    check_circuit(circuit)
    if model is None:
        return
    from cke.cli.build import open_source

    source = open_source(model)
    if source.tensors is None:
        from cke.dsl.elaborate import elaborate

        elaborate(circuit, source, "f32")
        return
    from cke.codegen.build import lower_circuit

    lower_circuit(path, source, "f32")


def fmt(*files: Path, check: bool = False) -> int:
    """Bring circuit files into their canonical form.

    Parameters
    ----------
    check
        Change nothing; list the files that would change, and exit 1 when there are any.
    """
    from cke.dsl.format import format_text

    if not files:
        raise _usage("expected FILE…", "fmt")
    changed = False
    for path in files:
        data = _read(path)
        text = format_text(data, str(path)).encode()
        if text == data:
            continue
        changed = True
        print(f"{path}: {'not formatted' if check else 'formatted'}")
        if not check:
            write_atomically(path, text)
    return 1 if check and changed else 0


def expand(circuit: str, /, *, output: Output = None) -> None:
    """Print a circuit with all that it inherits, each line with its origin.

    Parameters
    ----------
    circuit
        The name of a library circuit, or the path of a circuit file.
    """
    from cke.dsl.expand import expand as expand_circuit
    from cke.dsl.resolve import load_circuit

    text = expand_circuit(load_circuit(circuit))
    deliver("human", output, {"human": lambda: text})


def new(
    *,
    from_: Annotated[
        Path, Parameter(name="--from", help="A config.json, model folder or GGUF file.")
    ],
    name: str | None = None,
    output: Output = None,
) -> None:
    """Write a first circuit for a config, from the circuit that reads most of it.

    Parameters
    ----------
    name
        The circuit's name; by default it is made of the model's class.
    """
    from cke.cli.build import open_source
    from cke.dsl.new import new_circuit

    text = new_circuit(open_source(_existing(from_)), name)
    deliver("human", output, {"human": lambda: text})


def explain(subject: str, identifier: str | None = None, /, *, format: Format = "human") -> None:
    """Explain a diagnostic code, a circuit, or `kernel ID`.

    Parameters
    ----------
    subject
        A code such as CKE212, the name or path of a circuit, or `kernel`.
    identifier
        The id of a kernel, or the name of an operator for all its providers.
    """
    if subject == "kernel":
        _explain_kernel(identifier, format)
    elif subject[:3].upper() == "CKE" and subject[3:].isdigit():
        _explain_code(subject.upper(), format)
    else:
        _explain_circuit(subject, format)


def _explain_code(code: str, format: str) -> None:
    from cke.errors.catalogue import catalogue

    page = catalogue().get(code)
    if page is None:
        raise _usage(f"no diagnostic has the code `{code}`", "explain")
    text = "\n".join(
        [
            f"{code}: {page.title}",
            "",
            page.explanation.strip(),
            "",
            f"To fix it: {page.fix.strip()}",
        ]
    )
    body = {"code": code, "title": page.title, "explanation": page.explanation, "fix": page.fix}
    deliver(format, None, {"human": lambda: text, "json": lambda: encode_json(body)})


def _explain_kernel(identifier: str | None, format: str) -> None:
    from cke.cli.kernels import explain_kernel, explain_kernel_text

    if identifier is None:
        raise _usage("expected `kernel ID`", "explain")
    deliver(
        format,
        None,
        {
            "human": lambda: explain_kernel_text(identifier),
            "json": lambda: encode_json(explain_kernel(identifier)),
        },
    )


def _explain_circuit(name: str, format: str) -> None:
    from cke.dsl.explain import explain_circuit

    lines = explain_circuit(name)
    deliver(
        format,
        None,
        {"human": lambda: "\n".join(lines), "json": lambda: encode_json({"lines": lines})},
    )


def _read(path: Path) -> bytes:
    return _existing(path).read_bytes()


def _existing(path: Path) -> Path:
    if path.exists():
        return path
    raise MissingInputError(Diagnostic(code="CKE201", message="no such file", file=str(path)))


def _usage(message: str, verb: str) -> CkeError:
    note = Note(f"`cke {verb} --help` lists what it takes", label="help")
    return CkeError(Diagnostic(code="CKE901", message=message, notes=(note,)))
