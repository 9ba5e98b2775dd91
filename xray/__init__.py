"""Evidence in, diagnosis out. The package is also the function `cke.xray(model, oracle=…, out=…)`.

Importing any module of a package sets the package as an attribute of its parent, so that a
function named `cke.xray` can only be the package itself.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if __name__ == "xray":
    raise ImportError("this is a folder of the cke package: write `import cke.xray`")

if TYPE_CHECKING:
    from cke.schemas.diagnosis import Diagnosis


class _Callable(ModuleType):
    """The module, called as `cke.api.diagnosis.xray`; a layer above, and so imported late."""

    def __call__(self, *arguments: Any, **options: Any) -> "Diagnosis":
        report: Diagnosis = importlib.import_module("cke.api.diagnosis").xray(*arguments, **options)
        return report


sys.modules[__name__].__class__ = _Callable
