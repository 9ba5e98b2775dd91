"""`cke build` and `cke dump`: a circuit and a model in, code or the text of a level out."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from cyclopts import Parameter

from cke.cli.output import Format, Output, deliver, encode_json, progress
from cke.errors import CkeError, Diagnostic, Note
from cke.errors.files import cache_folder
from cke.schemas.model_source import ModelSource

DTYPES = {"f32": "f32", "float32": "f32", "bf16": "bf16", "bfloat16": "bf16"}
Model = Annotated[Path | None, Parameter(help="A model folder, a .gguf file, or a config.json.")]
Capture = Annotated[
    tuple[str, ...], Parameter(help="Checkpoints that the code returns, such as 'attention.*'.")
]


def build(
    circuit: str | None = None,
    /,
    *,
    model: Model = None,
    dtype: str = "f32",
    capture: Capture = (),
    check: bool = False,
    library: bool = False,
    format: Format = "human",
    output: Output = None,
) -> int:
    """Generate the code and manifest of a circuit for a model.

    Parameters
    ----------
    circuit
        The name of a library circuit, or the path of a circuit file.
    dtype
        The dtype of the run: f32 or bf16.
    check
        Regenerate the checked-in packages and show how they differ; exit 1 when they do.
    library
        Regenerate the checked-in packages in place.
    output
        The folder of the package; without it, the package goes to the user's cache.
    """
    if check or library:
        return _check(format, output) if check else _write_library(format)
    if circuit is None or model is None:
        raise _usage("expected CIRCUIT and `--model`, or `--check`")
    source = open_source(model)
    return _build(circuit, source, run_dtype(dtype), capture, format, output)


def _build(
    circuit: str,
    source: ModelSource,
    dtype: str,
    capture: tuple[str, ...],
    format: str,
    output: Path | None,
) -> int:
    from cke.codegen.build import build as build_circuit
    from cke.codegen.package import write_package

    package = build_circuit(circuit, source, dtype, capture)
    if output is None:
        from cke.api.build import package_key

        output = cache_folder("packages", package_key(source, circuit, dtype, capture))
    write_package(package, output)
    _report(format, str(output), {"folder": str(output), "files": sorted(package.files)})
    return 0


def _check(format: str, output: Path | None) -> int:
    from cke.codegen.library import generated_folder, library_circuits, library_diff

    diff = library_diff(generated_folder())
    progress(f"{len(library_circuits())} packages compared")
    deliver(
        format,
        output,
        {
            "human": lambda: diff or "generated code is up to date",
            "json": lambda: encode_json({"equal": not diff, "diff": diff}),
        },
    )
    return 1 if diff else 0


def _write_library(format: str) -> int:
    from cke.codegen.library import generated_folder, write_library

    names = write_library(generated_folder())
    _report(format, "\n".join(names), {"packages": names})
    return 0


def _report(format: str, text: str, data: object) -> None:
    deliver(format, None, {"human": lambda: text, "json": lambda: encode_json(data)})


def dump(
    circuit: str,
    /,
    *,
    stage: Literal["build", "graph", "lowered", "call"] = "graph",
    model: Model = None,
    dtype: str = "f32",
    capture: Capture = (),
    format: Format = "human",
    output: Output = None,
) -> None:
    """Print one level of a circuit, one operation a line.

    Parameters
    ----------
    circuit
        The name of a library circuit, or the path of a circuit file.
    stage
        build, graph, lowered or call.
    """
    from cke.codegen.build import lower_circuit
    from cke.codegen.dump import AnyIR
    from cke.codegen.dump import dump as dump_level
    from cke.codegen.library import reference_source

    source: ModelSource = reference_source(circuit) if model is None else open_source(model)
    levels = lower_circuit(circuit, source, run_dtype(dtype), capture)
    found: dict[str, AnyIR] = {
        "build": levels.build,
        "graph": levels.graph,
        "lowered": levels.lowered,
        "call": levels.calls,
    }
    level = found[stage]
    deliver(
        format, output, {"human": lambda: dump_level(level), "json": lambda: encode_json(level)}
    )


def run_dtype(name: str) -> str:
    """Return the run dtype as the IR spells it; anything but f32 and bf16 is an error."""
    if name in DTYPES:
        return DTYPES[name]
    raise _usage(f"`--dtype` expects f32 or bf16, got `{name}`")


def open_source(path: Path) -> ModelSource:
    """Return the model at `path`; a config.json, or a folder with nothing else, has no tensors."""
    from cke.codegen.library import ConfigSource

    config = path / "config.json" if path.is_dir() else path
    if config.name == "config.json" and config.is_file() and not _weights(path):
        return ConfigSource(path.name, msgspec.json.decode(config.read_bytes()))
    from cke.runtime.weights.files import open_model

    return open_model(path)


def _weights(path: Path) -> bool:
    return path.is_dir() and any(
        item.suffix in (".safetensors", ".gguf", ".bin") for item in path.iterdir()
    )


def _usage(message: str) -> CkeError:
    note = Note("`cke build --help` lists what it takes", label="help")
    return CkeError(Diagnostic(code="CKE901", message=message, notes=(note,)))
