"""What the pages show: records of files and sources, and the steps of a loader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial

import numpy as np

from loaderx import DataLoader
from loaderx.errors import LoaderxError, PositionError
from loaderx.loader.state import State
from loaderx.memory import Pool
from loaderx.plans.index_plan import IndexPlan
from loaderx.plans.record_stages import Passed
from loaderx.plans.records import Records, source_parts
from loaderx.sources.open.opening import Opened
from loaderx.survey.columns import Column, columns_of, spread
from loaderx.survey.look import Look, OpenParts, look
from loaderx.tree import Tree, flatten

_SAMPLE = 512  # records that the facts of columns are from
_AHEAD = 256  # steps of a stream that are read for one page
_KEEP_EVERY = 32  # steps


def told(error: Exception) -> str:
    """An error in words."""
    return str(error) if isinstance(error, LoaderxError) else f"{type(error).__name__}: {error}"


def named_leaves(tree: Tree) -> dict[str, object]:
    """The leaves of a record or batch by their paths."""
    leaves, structure = flatten(tree)
    return {path or "record": leaf for path, leaf in zip(structure.paths(), leaves, strict=True)}


class Split:
    """Records by number: a split of files, or a source of a dataset."""

    def __init__(self, open_parts: OpenParts, fill: Mapping[str, object]) -> None:
        self._open_parts, self._fill = open_parts, fill
        self._opened: dict[str, list[Opened]] = {}  # by the values of `fill`

    def _open(self, fill: Mapping[str, object]) -> list[Opened]:
        key = repr(sorted(fill.items()))
        if key not in self._opened:
            self._opened[key] = self._open_parts(fill)
        return self._opened[key]

    def records(self, start: int, count: int) -> Look:
        """Some records, from a number on."""

        def chosen(parts: Sequence[Opened]) -> list[int]:
            return list(range(start, min(start + count, sum(p.stop - p.start for p in parts))))

        return look(self._open, chosen, self._fill)

    def columns(self) -> tuple[Look, list[Column]]:
        """A sample of the records, and the facts of its columns."""
        found = look(self._open, partial(spread, most=_SAMPLE), self._fill)
        return found, columns_of(found)


def _always(opened: Opened) -> OpenParts:
    return lambda fill: [opened]


class Steps:
    """The elements of a loader, by step."""

    def __init__(self, loader: DataLoader[Tree]) -> None:
        self.loader, self.node = loader, loader._node
        self.classes = loader.dataset.classes

    @cached_property
    def _plan(self) -> IndexPlan:
        return IndexPlan(self.loader._all, shard=self.loader._shard)

    def element(self, step: int) -> Tree:
        """The element of a step."""
        self.records(step)  # says which steps there are
        return self._plan.read_alone(step, Pool().lend)

    def records(self, step: int) -> Records:
        """The records that it is made of."""
        return self.loader.records(step)

    def stages(self, step: int, number: int) -> list[Passed]:
        """What each stage does to one of these."""
        return self.loader._provenance().stages(step, number)

    def sources(self) -> Iterator[tuple[str, Split]]:
        """The sources by name; none if their records have no numbers."""
        try:
            for part in source_parts(self.node):
                yield part.name, Split(_always(Opened(part.source, 0, len(part.source))), {})
        except LoaderxError:  # iterables
            return


class StreamSteps(Steps):
    """The elements of a stream, which are read one after the other.

    Positions are kept on the way, so that going back does not begin anew.
    """

    def __init__(self, loader: DataLoader[Tree]) -> None:
        super().__init__(loader)
        self._iterator = iter(loader)
        self._kept: dict[int, State] = {0: self._iterator.get_state()}
        self._last: tuple[int, Tree] = -1, None

    def element(self, step: int) -> Tree:
        if self._last[0] == step:
            return self._last[1]
        if self._iterator.step > step:
            self._go_near(step)
        iterator, made = self._iterator, None
        first = iterator.step
        while iterator.step <= step:
            at = iterator.step
            if at >= first + _AHEAD:
                raise self._too_far(at)
            if at % _KEEP_EVERY == 0:
                self._kept[at] = iterator.get_state()
            try:
                made = next(iterator)
            except Exception as error:
                self._go_near(step)
                if isinstance(error, StopIteration):
                    raise PositionError(f"there is no step {step}: there are {at}.") from None
                raise
        self._last = step, made
        return made

    def _near(self, step: int) -> State:
        return self._kept[max(at for at in self._kept if at <= step)]

    def _go_near(self, step: int) -> None:
        self._last = -1, None
        self._iterator.close()
        self._iterator = iter(self.loader)
        self._iterator.set_state(self._near(step))

    def records(self, step: int) -> Records:
        if step >= self._iterator.step + _AHEAD:
            raise self._too_far(self._iterator.step)
        return self.loader.records(step, near=self._near(step))

    def _too_far(self, at: int) -> PositionError:
        return PositionError(
            f"a stream is read in order, and the steps before {at:,} are read: ask again."
        )


def steps_of(loader: DataLoader[Tree]) -> Steps:
    """The elements of any loader."""
    return Steps(loader) if loader._stream is None else StreamSteps(loader)


def batch_rows(leaves: Mapping[str, object]) -> dict[int, dict[str, object]]:
    """The rows of a batch, by number."""
    arrays = {path: np.asarray(leaf) for path, leaf in leaves.items()}
    count = max((len(array) for array in arrays.values() if array.ndim), default=0)
    rows = {path: array for path, array in arrays.items() if array.ndim and len(array) == count}
    return {n: {path: row[n] for path, row in rows.items()} for n in range(count)}


def batch_columns(
    rows: Mapping[int, Mapping[str, object]], classes: Mapping[str, Sequence[str]]
) -> list[Column]:
    """The facts of a batch: of packed leaves, those of the records that lie in its rows."""
    values: dict[str, list[object]] = {}
    for row in rows.values():
        for path in row.keys() - packed_names(row):
            segments = np.asarray(row.get(f"{path}_segment_ids", 0))
            numbers = range(1, int(segments.max(initial=0)) + 1) if segments.ndim else ()
            pieces = [np.asarray(row[path])[segments == number] for number in numbers]
            values.setdefault(path, []).extend(pieces if segments.ndim else [row[path]])
    return [
        Column(path, values[path], len(values[path]), classes.get(path, ()))
        for path in next(iter(rows.values()), {})
        if path in values
    ]


def packed_names(row: Mapping[str, object]) -> set[str]:
    """The leaves that say where records lie in others."""
    packs = [path for path in row if f"{path}_segment_ids" in row]
    return {f"{path}_{name}" for path in packs for name in ("segment_ids", "positions")}
