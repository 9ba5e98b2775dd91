"""A probe packet: the input matrix of a circuit, the runs that cover it, and what was covered.

The packet is a folder with ``probe.json`` (this struct) and a trace folder for each run.
"""

from cke.schemas.ir import Node

SCHEMA = "cke.xray_probe_packet"
VERSION = 1


class ProbeRun(Node, frozen=True):
    """One request that was run: its folder, the digest of its trace, and the gate's outcome.

    `verdict` is that of the comparison with the packet's oracle, None without one.
    """

    name: str
    dtype: str
    tokens: tuple[tuple[int, ...], ...]
    segments: tuple[int, ...]
    forced: tuple[tuple[int, ...], ...]
    first_position: int
    trace: str
    trace_sha256: str
    neutrality: str
    records: int
    oracle_trace: str | None = None
    verdict: str | None = None
    first_over_gate: str | None = None


class ProbeCell(Node, frozen=True):
    """One cell of the matrix: the run that covers it, or why none does."""

    position: str
    keys: str
    length: str
    batch: str
    execution: str
    dtype: str
    run: str | None
    reason: str | None = None


class ProbePacket(Node, frozen=True):
    """The matrix of a circuit. `layers` are the first two of each kind of layer.

    `boundaries` are positions where rope changes or the model's context ends; `experts` says how
    many experts of each routed layer were chosen at least once, of how many.
    """

    schema: str
    version: int
    circuit: str
    windows: tuple[int, ...]
    boundaries: tuple[int, ...]
    learned_positions: int | None
    layers: dict[str, tuple[int, ...]]
    special_tokens: tuple[int, ...]
    oracle: str | None
    runs: tuple[ProbeRun, ...]
    cells: tuple[ProbeCell, ...]
    experts: dict[str, tuple[int, int]]
