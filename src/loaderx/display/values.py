"""A value as short text, without characters that could change what a terminal shows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from loaderx.tree import Array

_MOST_ITEMS = 8  # of an array that are shown one by one


def value_text(value: object, names: Sequence[str] | None = None) -> str:
    """A leaf of a record as text; ``names`` are those of the classes that a number stands for.

    >>> value_text(np.array([1.0, 0.25])), value_text(np.zeros((28, 28), np.uint8))
    ('[1, 0.25]', 'uint8[28,28]')
    >>> value_text(1, ("cat", "dog")), value_text("a\\x1b[31m")
    ('dog', 'a\\\\x1b[31m')
    """
    if value is None:
        return "null"
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if names and isinstance(value, (int, np.integer)) and 0 <= value < len(names):
        return plain_text(names[int(value)])
    if isinstance(value, (float, np.floating)):
        return f"{value:.6g}"
    if isinstance(value, bytes):
        return f"{len(value):,} byte{'s' if len(value) != 1 else ''}"
    if isinstance(value, (list, np.ndarray)):
        items = value if isinstance(value, list) or value.ndim == 1 else None
        if items is not None and len(items) <= _MOST_ITEMS:
            return f"[{', '.join(value_text(item, names) for item in items)}]"
        return array_text(np.asarray(value))
    return plain_text(str(value))


def array_text(array: Array) -> str:
    """Dtype and shape, as `ArraySpec` writes them."""
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"


def plain_text(text: str) -> str:
    """Text with escapes in place of characters that cannot be printed."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def size_text(nbytes: float) -> str:
    """A number of bytes for a person.

    >>> size_text(12), size_text(3_200), size_text(116_955_553)
    ('12 bytes', '3.2 kB', '117.0 MB')
    """
    if nbytes < 1000:
        return f"{nbytes:,.0f} byte{'s' if nbytes != 1 else ''}"
    power = min(3, int(math.log10(nbytes * 1.0000501) / 3) - 1)
    return f"{nbytes / 1000 ** (power + 1):,.1f} {'kMGT'[power]}B"
