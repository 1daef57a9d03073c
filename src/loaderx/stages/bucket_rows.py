"""Bucketing: records of similar length together, in batches of a few fixed shapes.

The records of a window are sorted into buckets by length.  Each bucket is cut into batches of its
size, padded to its boundary.  Records that are left over go on to the next larger bucket, so that
a window has at most one batch that is not full: its last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from loaderx.errors import StackError
from loaderx.frozen import Frozen
from loaderx.memory import Lend
from loaderx.reading.stacking import Padding, pad_rows, stack
from loaderx.stages.bucket import Bucketing
from loaderx.tree import Tree, as_array, flatten

Name = Callable[[int], str]


class BucketBatch(NamedTuple):
    """One host's part of a finished batch."""

    tree: Tree
    rows: list[int]  # those of the window that are in the batch, on all hosts
    first: int  # of this host in the batch
    size: int  # of this host, with padding
    real: int  # of this host, without


class Batcher(Frozen):
    """Makes the batches of one window."""

    records: list[object]
    paths: list[str]  # of the leaves to pad
    options: Bucketing
    host: tuple[int, int]
    name: Name
    lend: Lend

    def batch(self, rows: list[int], boundary: int, size: int) -> BucketBatch:
        options, (host, hosts) = self.options, self.host
        padding = Padding(dict.fromkeys(self.paths, boundary), options.pad_value)
        first, size = size // hosts * host, size // hosts
        own = rows[first : first + size]
        count, own = len(own), own or rows[:1]  # a row of padding is like any other
        chosen = [self.records[row] for row in own]
        tree = stack(chosen, self.lend, lambda number: self.name(own[number]), padding)
        if not options.drop_remainder:
            tree = pad_rows(tree, count, size, options.mask_key, padding, self.lend)
        return BucketBatch(tree, rows, first, size, count)


def bucket(
    records: list[object], options: Bucketing, host: tuple[int, int], name: Name, lend: Lend
) -> list[BucketBatch]:
    """A host's part of the batches of one window."""
    paths = ragged_leaves(records[0], options, name)
    waiting: list[int] = []
    by_bucket: list[list[int]] = [[] for _ in options.boundaries]
    for number, record in enumerate(records):
        by_bucket[_bucket_of(record, paths, options, name, number)].append(number)
    batches, batcher = [], Batcher(records, paths, options, host, name, lend)
    for members, boundary, size in zip(
        by_bucket, options.boundaries, options.batch_sizes, strict=True
    ):
        members = waiting + members
        whole = len(members) // size * size
        batches += [
            batcher.batch(members[start : start + size], boundary, size)
            for start in range(0, whole, size)
        ]
        waiting = members[whole:]
    if waiting and not options.drop_remainder:
        batches.append(batcher.batch(waiting, options.boundaries[-1], options.batch_sizes[-1]))
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
