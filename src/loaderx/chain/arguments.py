"""Arguments of stages that need more than a look: weights, fractions, paddings, indices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderx.chain.base import LIMIT
from loaderx.errors import (
    ArgumentError,
    ArgumentTypeError,
    ChainError,
    PositionError,
    check_choice,
    check_int,
    check_name,
)
from loaderx.stages.options import OVERFLOWS, STRATEGIES, Bucketing, Packing
from loaderx.stages.stacking import Padding


def mix_weights(weights: Sequence[float] | None, count: int) -> list[float]:
    if weights is None:
        return [1.0] * count
    if isinstance(weights, (str, bytes, Mapping)) or not isinstance(weights, Iterable):
        raise ArgumentTypeError(
            f"`weights` must be a list of numbers, one for each dataset; got {weights!r}."
        )
    shares = [_weight(number, weight) for number, weight in enumerate(weights)]
    if len(shares) != count:
        raise ArgumentError(f"`weights` has {len(shares)} numbers for {count} datasets.")
    for number, share in enumerate(shares):
        if not (math.isfinite(share) and share > 0):
            raise ArgumentError(
                f"`weights` must be positive numbers; weight {number} is {share}. "
                "Leave a dataset out instead of giving it no weight."
            )
    return shares


def _weight(number: int, weight: Any) -> float:
    try:
        if isinstance(weight, (str, bytes)):
            raise TypeError
        return float(weight)
    except (TypeError, ValueError):
        raise ArgumentTypeError(
            f"`weights` must be positive numbers; weight {number} is {weight!r} "
            f"({type(weight).__name__})."
        ) from None


def split_bounds(fractions: Sequence[Any], length: int) -> list[int]:
    for fraction in fractions:
        if isinstance(fraction, (list, tuple)):
            listed = ", ".join(map(str, fraction))
            raise ArgumentTypeError(f"split takes one number after the other: .split({listed}).")
        if not (isinstance(fraction, (int, float)) and 0 < fraction <= 1):
            raise ArgumentError(
                f"`fractions` must be between 0 and 1, got {fraction!r}. "
                "For counts, write ds[:n] and ds[n:] before any .shuffle(...)."
            )
    total = math.fsum(fractions)
    if not fractions or abs(total - 1) > 1e-6:
        rest = f"; write .split({', '.join(map(str, fractions))}, {1 - total:.6g})"
        raise ArgumentError(
            f"`fractions` must add up to 1, got {total:.6g}{rest if 0 < total < 1 else ''}."
        )
    done, bounds = 0.0, [0]
    for number, fraction in enumerate(fractions):
        done += fraction
        bounds.append(length if number == len(fractions) - 1 else round(done * length))
        if bounds[-1] == bounds[-2]:
            raise ArgumentError(f"split: part {number} would be empty ({fraction} of {length}).")
    return bounds


def check_window(window: int) -> int:
    window = check_int("window", window, least=1)
    if window > LIMIT:
        raise ArgumentError(f"`window` must be at most 2**62, got {window}.")
    return window


def check_padding(pad_to: Mapping[str, int] | None, value: Any) -> Padding:
    if pad_to is not None and not isinstance(pad_to, Mapping):
        raise ArgumentTypeError(
            f"`pad_to` must be a dict such as {{'tokens': 512}}, got {pad_to!r}."
        )
    lengths = {
        check_name("pad_to", path): check_int(f"pad_to[{path!r}]", n, least=1)
        for path, n in (pad_to or {}).items()
    }
    return Padding(lengths, value)


def check_packing(
    lengths: Any,
    strategy: str,
    window: int,
    overflow: str,
    pad_value: Any,
    max_segments: int | None,
    segment_ids: str | None,
    positions: str | None,
    bos: Any,
    whole_documents: bool,
) -> Packing:
    if not isinstance(lengths, Mapping) or not lengths:
        raise ArgumentTypeError(
            f"`lengths` must be a dict such as {{'tokens': 2048}}, got {lengths!r}."
        )
    least = 1 if bos is None else 2
    rows = {
        check_name("lengths", path): check_int(f"lengths[{path!r}]", n, least=least)
        for path, n in lengths.items()
    }
    check_choice("strategy", strategy, STRATEGIES)
    check_choice("overflow", overflow, OVERFLOWS)
    if max_segments is not None:
        check_int("max_segments", max_segments, least=1)
    for name, template in (("segment_ids", segment_ids), ("positions", positions)):
        if template is not None and (not isinstance(template, str) or "{}" not in template):
            raise ArgumentError(
                f"`{name}` must be a name with a {{}} for the leaf, such as '{{}}_{name}', or "
                f"None; got {template!r}."
            )
    if segment_ids is not None and segment_ids == positions:
        raise ArgumentError(f"`segment_ids` and `positions` have the same name {positions!r}.")
    if whole_documents and strategy != "concat":
        raise ArgumentError(
            f"`whole_documents` goes with strategy='concat'; {strategy!r} never cuts a record."
        )
    if strategy == "concat" and not whole_documents:
        if len(set(rows.values())) > 1:
            raise ArgumentError(
                "strategy='concat' cuts all leaves at the same places: their `lengths` must be "
                f"equal, got {rows}. Use whole_documents=True, or another strategy."
            )
        if overflow != "error":
            raise ArgumentError(
                "strategy='concat' cuts records wherever a row is full, so `overflow` has no "
                "meaning. Leave it out, or use whole_documents=True."
            )
    return Packing(
        rows,
        strategy,
        check_window(window),
        overflow,
        pad_value,
        max_segments,
        segment_ids,
        positions,
        bos,
        bool(whole_documents),
    )


def check_bucketing(
    boundaries: Sequence[int],
    batch_sizes: int | Sequence[int],
    leaves: str | Sequence[str] | None,
    window: int,
    drop_remainder: bool,
    pad_value: Any,
    mask_key: str,
) -> Bucketing:
    if not isinstance(boundaries, Iterable) or not list(boundaries):
        raise ArgumentTypeError(f"`boundaries` must be a list of lengths, got {boundaries!r}.")
    ends = [check_int(f"boundaries[{i}]", n, least=1) for i, n in enumerate(boundaries)]
    if any(b <= a for a, b in itertools.pairwise(ends)):
        raise ArgumentError(f"`boundaries` must rise from each to the next, got {ends}.")
    if isinstance(batch_sizes, Iterable):
        listed = list(batch_sizes)
    else:
        listed = [check_int("batch_sizes", batch_sizes, least=1)] * len(ends)
    sizes = [check_int(f"batch_sizes[{i}]", n, least=1) for i, n in enumerate(listed)]
    if len(sizes) != len(ends):
        raise ArgumentError(
            f"`batch_sizes` has {len(sizes)} numbers for {len(ends)} boundaries. Give one for "
            "each, or one for all."
        )
    if isinstance(leaves, str):
        leaves = [leaves]
    if leaves is not None and not isinstance(leaves, Iterable):
        raise ArgumentTypeError(f"`leaves` must be a name or a list of names, got {leaves!r}.")
    named = None if leaves is None else tuple(check_name("leaves", leaf) for leaf in leaves)
    if named == ():
        raise ArgumentError("`leaves` is empty: name the leaves that have the length.")
    span = check_window(window)
    return Bucketing(
        tuple(ends),
        tuple(sizes),
        named,
        span,
        bool(drop_remainder),
        pad_value,
        check_name("mask_key", mask_key),
    )


def index_table(index: npt.NDArray[Any], length: int | None) -> npt.NDArray[np.int64]:
    if index.ndim != 1:
        raise ArgumentError(f"indices must be in one row, got an array of shape {index.shape}.")
    if length is None:
        raise ChainError("indices into an endless dataset: .take(n) first.")
    if index.dtype == bool:
        if len(index) != length:
            raise PositionError(f"the mask has {len(index)} entries for {length} elements.")
        table = np.flatnonzero(index)
    elif index.dtype.kind in "iu":
        table = index.astype(np.int64)
        outside = (table < -length) | (table >= length)
        if outside.any():
            bad = int(table[outside][0])
            raise PositionError(f"index {bad} is out of range for {length} elements.")
        table[table < 0] += length
    else:
        raise ArgumentTypeError(f"indices must be integers or bools, got {index.dtype}.")
    if not table.size:
        raise ArgumentError("the indices leave nothing of the dataset.")
    table.flags.writeable = False
    return table


def say_slice(index: slice) -> str:
    ends = ["" if end is None else str(end) for end in (index.start, index.stop, index.step)]
    return f"[{':'.join(ends if ends[2] else ends[:2])}]"
