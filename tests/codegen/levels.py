"""The toy, lowered by the pipeline and the registry."""

from cke.codegen.levels import Levels
from cke.codegen.pipeline import lower
from tests.codegen.toy import toy


def levels(capture: tuple[str, ...] = ()) -> Levels:
    """Return the toy at every level."""
    return lower(toy(capture))
