"""CKE: circuits, kernels, evidence."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cke.api import Model, load
    from cke.api.diagnosis import xray

__version__ = "0.1.0"
__all__ = ["Model", "__version__", "load", "xray"]


def __getattr__(name: str) -> Any:
    """Import the Python surface when it is first used, so that `import cke` stays light."""
    if name in ("Model", "load"):
        return getattr(importlib.import_module("cke.api"), name)
    if name == "xray":
        return importlib.import_module("cke.xray")
    raise AttributeError(f"module 'cke' has no attribute '{name}'")
