"""The Python surface: `load` a model, and what it can do.

This package alone joins the compiler and the running half. Its modules import JAX; `import cke`
does not import them.
"""

from cke.api.model import Model, load

__all__ = ["Model", "load"]
