"""Numbers that a stage can have: positions are below 2**62."""

from __future__ import annotations

from typing import Literal, TypeAlias

from loaderx.errors import ArgumentError, ArgumentTypeError, check_int
from loaderx.order.epochs import LIMIT

BlockSize: TypeAlias = int | Literal["source"]
"""Records in a block, or "source": the blocks that the source is stored in."""


def check_window(window: int) -> int:
    window = check_int("window", window, least=1)
    if window > LIMIT:
        raise ArgumentError(f"`window` must be at most 2**62, got {window}.")
    return window


def check_block(block: int | str) -> BlockSize:
    if block == "source":
        return "source"
    if isinstance(block, str):
        raise ArgumentTypeError(
            '`block` must be a number of records, or "source" for the blocks that the source is '
            f"stored in; got {block!r}."
        )
    return check_int("block", block, least=1)


def checked_length(length: int, limit: int = LIMIT) -> int:
    if length > limit:
        most = "2**62" if limit == LIMIT else str(limit)
        raise ArgumentError(f"a dataset can have at most {most} elements, this one has {length}.")
    return length
