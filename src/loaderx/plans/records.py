"""Which records of which sources an element was made of, and which elements have a record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, SupportsIndex

import numpy as np
import numpy.typing as npt

from loaderx.chain.node import Node
from loaderx.errors import (
    ArgumentError,
    ArgumentTypeError,
    ChainError,
    PositionError,
    check_int,
)
from loaderx.memory import Pool
from loaderx.plans.index_plan import IndexPlan
from loaderx.plans.record_stages import Passed, record_stages
from loaderx.reading.addresses import SourceAddresses
from loaderx.reading.context import ReadContext
from loaderx.reading.single_records import owned
from loaderx.reading.trails import Sought, Trail
from loaderx.rng import ROOT
from loaderx.sources.base import FileSource, Indices, Source
from loaderx.stages.inputs import FromSource, ReadSource
from loaderx.stages.join import Joined
from loaderx.tree import Array, Tree

_SHOWN = 10  # rows of a table


class SourcePart(NamedTuple):
    """One source of a dataset."""

    name: str  # the names of the components of the joins above it
    path: tuple[int, ...]  # the numbers of these
    source: Source


def source_parts(node: Node, name: str = "", path: tuple[int, ...] = ()) -> Iterator[SourcePart]:
    """All sources of a dataset."""
    while node.is_stage:
        (node,) = node.inputs
    if isinstance(node, FromSource):
        yield SourcePart(name, path, node.source)
        return
    if not isinstance(node, Joined):
        raise ChainError(
            "the records of Dataset.from_iterable are not known: it can be read in its own order "
            "only. Use a source that is read by index (Dataset.from_source, Dataset.open)."
        )
    for number, (own, part) in enumerate(zip(node.part_names, node.components, strict=True)):
        yield from source_parts(part, f"{name}/{own}" if name else own, (*path, number))


class Records:
    """The records that an element of a dataset was made of: what ``loader.records(step)`` returns.

    It has one entry for each record, in the order of the rows of the batch.  Where datasets are
    zipped, a row has a record of each; where records are packed, one for each segment.

    >>> from loaderx import Dataset
    >>> ds = Dataset.mix({"web": Dataset.range(90), "code": Dataset.range(30)}, [2, 1])
    >>> found = ds.shuffle(seed=0).batch(4).records(5)
    >>> found
    4 records
    row  part  index  epoch
      0   web     60      0
      1   web     52      0
      2  code     27      0
      3  code      9      0
    >>> found[found.part == "web"].index.tolist()
    [60, 52]

    Attributes:
        index: the number of each record in its source.
        epoch: how often the epochs of its source had begun anew before, by repeats and mixes.
        row: the row of the batch that it is in.
        segment: its number in a packed row, from 0 on.
    """

    def __init__(
        self,
        parts: Sequence[SourcePart],
        which: npt.NDArray[np.intp],
        index: Indices,
        epoch: Indices,
        row: Indices,
        segment: Indices,
    ) -> None:
        self._parts, self._which = parts, which
        self.index, self.epoch, self.row, self.segment = index, epoch, row, segment

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, chosen: slice | SupportsIndex | Array) -> Records:
        """Some of the records: by a mask, a slice, or numbers."""
        places = np.atleast_1d(np.arange(len(self))[chosen])
        arrays = (self._which, self.index, self.epoch, self.row, self.segment)
        return Records(self._parts, *(array[places] for array in arrays))

    @property
    def part(self) -> npt.NDArray[np.str_]:
        """The name of the dataset that each is from: in joins of joins, as in ``"web/0"``.

        Datasets that were joined without names are numbered; where nothing is joined, it is "".
        """
        return np.array([part.name for part in self._parts])[self._which]

    @cached_property
    def _files(self) -> list[tuple[str, int] | None]:
        found = []
        for which, index in zip(self._which.tolist(), self.index.tolist(), strict=True):
            source = self._parts[which].source
            found.append(source.file_of(index) if isinstance(source, FileSource) else None)
        return found

    @property
    def file(self) -> list[str | None]:
        """The file that each record is from; None if it is from no file, or from several."""
        return [None if found is None else found[0] for found in self._files]

    @property
    def file_index(self) -> list[int | None]:
        """The number of each record in its file."""
        return [None if found is None else found[1] for found in self._files]

    def read(self) -> list[Tree]:
        """The records as their sources have them, before any function of the dataset."""
        found: list[Tree] = [None] * len(self)
        for which in np.unique(self._which).tolist():
            places = np.flatnonzero(self._which == which)
            operator = ReadSource(self._parts[which].source, stacked=False)
            addresses = SourceAddresses(ROOT, self.index[places])
            rows = operator.read(addresses, ReadContext(Pool().lend))
            for place, record in zip(places.tolist(), rows.records(), strict=True):
                found[place] = owned(record)
        return found

    def columns(self) -> dict[str, list[object]]:
        """The attributes that tell something, with an entry for each record."""
        names = ["row", "index", "epoch"]
        names[1:1] = ["segment"] * bool(self.segment.any()) + ["part"] * any(self.part)
        names += ["file", "file_index"] * any(self.file)
        return {name: list(getattr(self, name)) for name in names}

    def __repr__(self) -> str:
        cells = [[name, *map(str, column)] for name, column in self[:_SHOWN].columns().items()]
        widths = [max(map(len, column)) for column in cells]
        rows = ["  ".join(map(str.rjust, row, widths)) for row in zip(*cells, strict=True)]
        more = [f"... and {len(self) - _SHOWN:,} more"] if len(self) > _SHOWN else []
        return "\n".join([f"{len(self):,} record{'s' * (len(self) != 1)}", *rows, *more])


def records_of(
    node: Node, trails: Iterable[Trail], segments: tuple[Indices, Indices] | None = None
) -> Records:
    """The records at the ends of trails from one element.

    With ``segments``, the rows of the trails are numbers of segments: the row and the number in it
    of each.
    """
    parts = list(source_parts(node))
    numbers = {part.path: number for number, part in enumerate(parts)}
    found = [np.empty((5, 0), np.int64)]
    for one in trails:
        which = np.full(len(one.rows), numbers[one.path])
        found.append(np.stack([which, one.positions, one.rounds, one.rows, one.order]))
    each = np.concatenate(found, axis=1)
    which, index, epoch, row, _ = each[:, np.lexsort((each[4], each[3]))]
    row, segment = (row, np.zeros_like(row)) if segments is None else (s[row] for s in segments)
    return Records(parts, which, index, epoch, row, segment)


class Provenance:
    """The records of steps, and the steps of records, of one dataset."""

    def __init__(self, node: Node, until: int | None) -> None:
        self.node = node
        self.until = until  # the end of the steps, if none is given; None: there is none

    def records(self, step: int, near: object = None) -> Records:
        """The records of a step; ``near`` is a state of a stream."""
        raise NotImplementedError

    def stages(self, step: int, number: int) -> list[Passed]:
        """What each stage does to one of the records of a step."""
        raise ChainError(
            "the stages of a stream make many records at once: what each does to one of them is "
            "not known."
        )

    def steps_of(
        self, index: object, part: str | None, until: int | None, near: object = None
    ) -> Indices:
        """All steps before ``until`` that have some of the records, ascending."""
        stop = self.until if until is None else check_int("until", until, least=0)
        if stop is None:
            raise ArgumentError(
                "the dataset is endless: say where to stop looking, steps_of(index, until=step)."
            )
        found = self._part(part)
        return self.find(found, _indices(found, index), min(stop, self.node.limit), near)

    def find(self, part: SourcePart, indices: Indices, until: int, near: object) -> Indices:
        """`steps_of`, with checked arguments."""
        raise NotImplementedError

    def _part(self, name: str | None) -> SourcePart:
        parts = {one.name: one for one in source_parts(self.node)}
        if name is None and len(parts) == 1:
            (name,) = parts
        if name in parts:
            return parts[name]
        given = "`part` is needed" if name is None else f"there is no part {name!r}"
        if [*parts] == [""]:
            raise ArgumentError(f"{given}: the dataset has no parts. Leave `part` out.")
        listed = ", ".join(map(repr, [*parts][:_SHOWN])) + ", ..." * (len(parts) > _SHOWN)
        raise ArgumentError(
            f"{given}: the dataset has the parts {listed}, and an index numbers the records of one."
        )


def _indices(part: SourcePart, index: object) -> Indices:
    indices = np.atleast_1d(np.asarray(index))
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise ArgumentTypeError(
            f"`index` must be the number of a record, or several of them, got {index!r:.60}."
        )
    length = len(part.source)
    wrong = np.flatnonzero((indices < 0) | (indices >= length))
    if wrong.size:
        of = f" of {part.name!r}" if part.name else ""
        raise PositionError(
            f"there is no record {indices[wrong[0]]}{of}: it has {length} records, numbered from 0."
        )
    return indices.astype(np.int64)


class IndexProvenance(Provenance):
    """Of a dataset that is read by index: addresses are computed, and nothing is read."""

    def __init__(self, node: Node, plan: IndexPlan, until: int | None) -> None:
        super().__init__(node, until)
        self.plan = plan

    def records(self, step: int, near: object = None) -> Records:
        _refuse(near)
        if step >= self.node.limit:
            raise PositionError(f"there is no step {step}: there are {self.node.limit}.")
        start = Trail.of(np.array([step], np.int64), ROOT)
        return records_of(self.node, self.plan.operator.trails(start))

    def stages(self, step: int, number: int) -> list[Passed]:
        found = self.records(step)[number : number + 1]
        if not len(found):
            raise PositionError(f"step {step} has no record {number}.")
        (part,) = found._which
        index, row, path = int(found.index[0]), int(found.row[0]), found._parts[part].path
        return record_stages(self.plan.operator, step, index, row, path)

    def find(self, part: SourcePart, indices: Indices, until: int, near: object) -> Indices:
        _refuse(near)
        keys = np.repeat(ROOT, len(indices))
        sought = Sought(indices, keys, np.full(len(indices), until), part.path)
        return np.unique(self.plan.operator.find(sought).positions)


def _refuse(near: object) -> None:
    if near is not None:
        raise ArgumentError("`near` is for streams: here the records follow from the step alone.")
