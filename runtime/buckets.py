"""Sizes that are compiled for: query positions T and key positions S are padded up to a bucket.

Rule: a T bucket is 1 or 16 · {1, 1.5} · 2ⁿ (1, 16, 24, 32, 48, 64, …) up to one segment, and a
longer prompt is cut into segments; an S bucket is 128 · {1, 1.5} · 2ⁿ (128, 192, 256, 384, …). At
most half of a bucket's last step is padding, and a session of S rows meets 2 · log₂(S / 128) sizes.
"""

SEGMENT = 1024
"""The most positions of one prefill call; what is longer runs in segments."""

FIRST_T = 16
FIRST_S = 128


def query_bucket(count: int) -> int:
    """Return the T bucket of `count` positions."""
    return 1 if count == 1 else _bucket(count, FIRST_T)


def key_bucket(count: int) -> int:
    """Return the S bucket of `count` cached rows."""
    return _bucket(count, FIRST_S)


def _bucket(count: int, first: int) -> int:
    size = first
    while size < count:
        if size + size // 2 >= count:
            return size + size // 2
        size *= 2
    return size
