"""`cke.xray.capture-neutrality.v1`: a study of paired programs, with captures and without.

It shows that a design holds over many inputs; the gate of each capture still runs (XRAY-43).
"""

from cke.schemas.ir import Node, Value

SCHEMA = "cke.xray.capture-neutrality.v1"


class Cell(Node, frozen=True):
    """One driver and phase: inputs whose outputs are all equal, of those that were run.

    `repeatable` counts the inputs whose two uncaptured runs agree; `differing` names the outputs
    of the first input whose captured run differs from its control.
    """

    driver: str
    phase: str
    inputs: int
    repeatable: int
    neutral: int
    outputs: int
    differing: tuple[str, ...]


class Study(Node, frozen=True):
    """One circuit in one dtype; `settings` holds every flag that the programs were made with."""

    schema: str
    circuit: str
    dtype: str
    edges: int
    same_kernels: bool
    cells: tuple[Cell, ...]
    drivers_agree: int
    settings: dict[str, Value]

    @property
    def neutral(self) -> bool:
        """Whether every input of every cell has the same bits with captures and without."""
        return all(cell.neutral == cell.inputs == cell.repeatable for cell in self.cells)
