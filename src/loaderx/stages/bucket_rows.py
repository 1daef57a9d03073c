"""Bucketing: records of similar length together, in batches of a few fixed shapes.

The records of a window are sorted into buckets by length.  Each bucket is cut into batches of its
size, padded to its boundary.  Records that are left over go on to the next larger bucket, so that
a window has at most one batch that is not full: its last.
"""

from __future__ import annotations

from collections.abc import Callable

from loaderx.errors import StackError
from loaderx.memory import Lend
from loaderx.reading.stacking import Padding, pad_rows, stack
from loaderx.stages.bucket import Bucketing
from loaderx.tree import Tree, as_array, flatten

Name = Callable[[int], str]


class BucketBatch:
    """A finished batch, and the rows of the window that are in it."""

    __slots__ = ("rows", "tree")

    def __init__(self, tree: Tree, rows: list[int]) -> None:
        self.tree, self.rows = tree, rows


def bucket(records: list[object], options: Bucketing, name: Name, lend: Lend) -> list[BucketBatch]:
    """The batches of one window."""
    paths = ragged_leaves(records[0], options, name)
    waiting: list[int] = []
    by_bucket: list[list[int]] = [[] for _ in options.boundaries]
    for number, record in enumerate(records):
        by_bucket[_bucket_of(record, paths, options, name, number)].append(number)
    batches = []
    for members, boundary, size in zip(
        by_bucket, options.boundaries, options.batch_sizes, strict=True
    ):
        members = waiting + members
        whole = len(members) // size * size
        for start in range(0, whole, size):
            rows = members[start : start + size]
            batches.append(_batch(records, rows, boundary, size, paths, options, name, lend))
        waiting = members[whole:]
    if waiting and not options.drop_remainder:
        boundary, size = options.boundaries[-1], options.batch_sizes[-1]
        batches.append(_batch(records, waiting, boundary, size, paths, options, name, lend))
    return batches


def ragged_leaves(record: object, options: Bucketing, name: Name) -> list[str]:
    """The leaves to pad: those that were named, or all that have an axis."""
    leaves, structure = flatten(record)
    paths = structure.paths()
    if options.leaves is None:
        found = [path for path, leaf in zip(paths, leaves, strict=True) if as_array(leaf).ndim > 0]
        if not found:
            raise StackError(f"{name(0)} has no leaf with a length.")
        return found
    for path in options.leaves:
        if path not in paths:
            have = ", ".join(map(repr, paths))
            raise StackError(f"`leaves` names {path!r}; records have {have}.")
    return list(options.leaves)


def _bucket_of(
    record: object, paths: list[str], options: Bucketing, name: Name, number: int
) -> int:
    leaves, structure = flatten(record)
    found = dict(zip(structure.paths(), leaves, strict=True))
    length = 0
    for path in paths:
        if path not in found:
            raise StackError(f'{name(number)} has no leaf "{path}", which other records have.')
        leaf = as_array(found[path])
        if not leaf.ndim:
            raise StackError(f'in {name(number)} leaf "{path}" is a single value, with no length.')
        length = max(length, len(leaf))
    for which, boundary in enumerate(options.boundaries):
        if length <= boundary:
            return which
    raise StackError(
        f"{name(number)} has length {length}, and the largest boundary is "
        f"{options.boundaries[-1]}. Cut it in .map(), filter it out, or add a boundary."
    )


def _batch(
    records: list[object],
    rows: list[int],
    boundary: int,
    size: int,
    paths: list[str],
    options: Bucketing,
    name: Name,
    lend: Lend,
) -> BucketBatch:
    padding = Padding(dict.fromkeys(paths, boundary), options.pad_value)
    chosen = [records[row] for row in rows]
    tree = stack(chosen, lend, lambda number: name(rows[number]), padding)
    if not options.drop_remainder:
        tree = pad_rows(tree, len(rows), size, options.mask_key, padding, lend)
    return BucketBatch(tree, rows)
