"""Cut an array into tiles in row-major order, so that no tile exceeds a number of elements.

Each tile is contiguous in an array of that shape: its flat range is (start, start + size).
"""

from collections.abc import Iterator

Tile = tuple[slice, ...]


def tiles(shape: tuple[int, ...], limit: int, whole: int | None = None) -> Iterator[Tile]:
    """Yield tiles of at most `limit` elements in order; the last axes from `whole` on stay whole.

    A tile is larger than `limit` only where the axes that stay whole are.
    """
    if 0 in shape:
        return
    inner = 1
    split = len(shape)
    last = len(shape) if whole is None else whole
    while split > 0 and (split > last or inner * shape[split - 1] <= limit):
        split -= 1
        inner *= shape[split]
    rest = tuple(slice(0, size) for size in shape[split:])
    if split == 0:
        yield rest
        return
    step = max(1, limit // inner)
    for head in _indices(shape[: split - 1]):
        for start in range(0, shape[split - 1], step):
            yield (*head, slice(start, min(start + step, shape[split - 1])), *rest)


def _indices(shape: tuple[int, ...]) -> Iterator[Tile]:
    if not shape:
        yield ()
        return
    for head in _indices(shape[:-1]):
        for index in range(shape[-1]):
            yield (*head, slice(index, index + 1))


def flat_start(tile: Tile, shape: tuple[int, ...]) -> int:
    """Return the flat index of the tile's first element."""
    position = 0
    for part, size in zip(tile, shape, strict=True):
        position = position * size + part.start
    return position


def tile_shape(tile: Tile) -> tuple[int, ...]:
    """Return the shape of the tile."""
    return tuple(part.stop - part.start for part in tile)
