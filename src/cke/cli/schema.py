"""`cke schema`: the published JSON Schemas, as they are shipped."""

from importlib import resources

from cke.cli.output import Output, deliver
from cke.errors import CkeError, Diagnostic, Note


def schema(name: str | None = None, /, *, output: Output = None) -> None:
    """Print the JSON Schema of an on-disk format, or list the formats.

    Parameters
    ----------
    name
        The id of a format, such as `cke.checkpoint_manifest.v1`; all ids are listed without it.
    """
    folder = resources.files("cke.schemas").joinpath("json")
    names = sorted(file.name.removesuffix(".json") for file in folder.iterdir())
    if name is None:
        deliver("human", output, {"human": lambda: "\n".join(names)})
        return
    if name not in names:
        raise CkeError(
            Diagnostic(
                code="CKE907",
                message=f"expected the id of a published format, got `{name}`",
                notes=(Note("`cke schema` lists them", label="help"),),
            )
        )
    text = folder.joinpath(f"{name}.json").read_text(encoding="utf-8")
    deliver("human", output, {"human": lambda: text})
