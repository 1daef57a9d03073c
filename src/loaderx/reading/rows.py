"""`Rows`: records in order, on their way from a source into a batch.

The records are kept one by one (`records`), or as columns: a tree of arrays with an entry for each
row.  Columns may belong to the source and have more entries than there are rows: then ``chosen``
says which entries are the rows, and nothing has been copied yet.

In a stream each row also has a *key* (for random draws), a *place* (the position in the input that
it came from, by which windows are counted; places never decrease) and an *origin* (for messages:
its number in what was read).  Filtering drops all three with the record, a shuffle moves records
but not places, and packing gives the rows of a window the first place of the window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from loaderx.errors import LoaderxError, StackError
from loaderx.gathering import take_rows, taken
from loaderx.memory import Layout, Lend
from loaderx.reading.error_text import failed
from loaderx.reading.returned_columns import records_of, wrong_rows
from loaderx.reading.stacking import NO_PADDING, RESIZE, Padding, stack, unpadded
from loaderx.rng import CHILD, Keys, fold
from loaderx.tree import Array, Structure, Tree, flatten

if TYPE_CHECKING:
    import numpy.typing as npt

Record: TypeAlias = object
"""A record: any value of a source or a user's function, which only `flatten` looks into."""

Positions = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

Identify = Callable[[int], tuple[int | None, str]]
"""The index in its source and the name of the row with this origin."""

Fail: TypeAlias = Callable[[int | None, BaseException], LoaderxError]
"""Makes the error to raise when a function fails on a row, or, for None, on all rows at once."""

_NOT_BUILT = object()
_NOTHING = np.empty(0, np.int64)


class Rows:
    """Records in order.  Made by `of_records` or `of_columns`; never changed."""

    __slots__ = (
        "_chosen", "_leaves", "_records", "_structure", "_tree", "count", "identify", "keys",
        "origins", "padding", "places",
    )  # fmt: skip

    _chosen: Positions | None
    _leaves: list[Array] | None
    _records: list[Record] | None
    _structure: Structure | None
    _tree: Tree
    count: int
    identify: Identify | None
    keys: Keys | None
    origins: Positions | None
    padding: Padding
    places: Positions | None

    @classmethod
    def of_records(
        cls,
        records: list[Record],
        keys: Keys | None = None,
        *,
        places: Positions | None = None,
        origins: Positions | None = None,
        identify: Identify | None = None,
    ) -> Rows:
        """Single records."""
        made = cls.__new__(cls)
        made._records = records
        made._tree, made._leaves, made._structure, made._chosen = _NOT_BUILT, None, None, None
        made.count, made.padding = len(records), NO_PADDING
        made.keys, made.places = keys, places
        if identify is not None and origins is None:
            origins = np.arange(len(records))  # so that parts of the rows keep their identities
        made.origins, made.identify = origins, identify
        return made

    @classmethod
    def of_columns(
        cls,
        tree: Tree,
        count: int,
        keys: Keys | None = None,
        *,
        chosen: Positions | None = None,
        padding: Padding = NO_PADDING,
    ) -> Rows:
        """Columns; with ``chosen``, these entries of them.  ``padding`` has been applied."""
        made = cls.__new__(cls)
        made._records, made._leaves, made._structure = None, None, None
        made._tree, made._chosen = tree, chosen
        made.count, made.padding, made.keys = count, padding, keys
        made.places = made.origins = made.identify = None
        return made

    def __len__(self) -> int:
        return self.count

    # Content ----------------------------------------------------------------------------------

    @property
    def is_stacked(self) -> bool:
        """Whether the rows are kept as columns."""
        return self._records is None

    @property
    def tree(self) -> Tree:
        """The columns, an entry for each row."""
        if self._chosen is not None:
            leaves = [leaf[self._chosen] for leaf in self.leaves]
            return self.structure.build(leaves)
        if self._tree is _NOT_BUILT:
            self._tree = self.structure.build(self.leaves)
        return self._tree

    @property
    def leaves(self) -> list[Array]:
        """The arrays of the columns; with `chosen`, they have other entries too."""
        if self._leaves is None:
            self._leaves, self._structure = flatten(self._tree)
        return self._leaves

    @property
    def structure(self) -> Structure:
        if self._structure is None:
            self._leaves, self._structure = flatten(self._tree)
        return self._structure

    @property
    def chosen(self) -> Positions | None:
        """The entries of the leaves that are the rows; None: all of them."""
        return self._chosen

    def records(self) -> list[Record]:
        """The records one by one, as they were before any padding; views of the columns."""
        if self._records is not None:
            return self._records
        leaves, structure = flatten(self.tree)
        if not leaves:
            return [self.tree] * self.count
        records = [structure.build(row) for row in zip(*leaves, strict=True)]
        if self.padding.lengths:
            return [unpadded(record, self.padding) for record in records]
        return records

    def columns(self, lend: Lend, stage: str, name: Callable[[int], str] | None = None) -> Tree:
        """The columns, stacked if need be, for a ``stage`` that works on many records at once."""
        if self._records is None:
            return self.tree
        try:
            return stack(self._records, lend, name or self.name)
        except StackError as error:
            problem = str(error).replace(RESIZE, _NOT_STACKED)
            raise StackError(f"{stage} is given stacked runs of records: {problem}") from error

    # Other rows -------------------------------------------------------------------------------

    def with_records(self, records: list[Record]) -> Rows:
        """The same rows with other records."""
        return self._along(Rows.of_records(records, self.keys))

    def with_columns(self, tree: Tree) -> Rows:
        """The same rows with other columns."""
        return self._along(Rows.of_columns(tree, self.count, self.keys))

    def with_keys(self, keys: Keys) -> Rows:
        """The same rows with other keys."""
        made = self.cut(0, self.count, copy=True)
        made.keys = keys
        return made

    def with_content(self, made: Rows) -> Rows:
        """The same rows with the content of others, which were made of them."""
        made.keys = self.keys
        return self._along(made)

    def _along(self, made: Rows) -> Rows:
        made.places, made.origins, made.identify = self.places, self.origins, self.identify
        return made

    def derived(
        self,
        content: list[Record] | Rows,
        sources: Positions,
        *,
        keys: Keys | None = None,
        places: Positions | None = None,
    ) -> Rows:
        """Rows that were made of these: row *i* of row ``sources[i]``, whose identity it has.

        Without ``keys``, each gets a key of its own, from its source's key and how many rows were
        made of that source before it.
        """
        made = (
            Rows.of_records(content)
            if isinstance(content, list)
            else content.cut(0, content.count, copy=True)
        )
        if self.keys is not None:
            made.keys = keys if keys is not None else self._derived_keys(sources)
        if self.places is not None:
            made.places = self.places[sources] if places is None else places
        if self.origins is not None:
            made.origins = self.origins[sources]
        made.identify = self.identify
        return made

    def _derived_keys(self, sources: Positions) -> Keys:
        assert self.keys is not None
        if not len(sources):
            return self.keys[:0]
        order = np.argsort(sources, kind="stable")
        ordered = sources[order]
        numbers = np.empty(len(sources), np.int64)
        numbers[order] = np.arange(len(sources)) - np.searchsorted(ordered, ordered)
        return fold(self.keys[sources], numbers, CHILD)

    def pick(
        self, index: Positions, lend: Lend | None = None, *, keep_places: bool = False
    ) -> Rows:
        """The rows with these numbers; with ``keep_places`` the places stay where they are."""
        index = np.asarray(index, np.int64)
        if self._records is not None:
            made = Rows.of_records([self._records[i] for i in index.tolist()])
        else:
            made = Rows.of_columns(_NOT_BUILT, len(index))
            rows = index if self._chosen is None else self._chosen[index]
            made._leaves, made._structure = _taken(self.leaves, rows, lend), self.structure
        if self.keys is not None:
            made.keys = self.keys[index]
        if self.places is not None:
            made.places = self.places if keep_places else self.places[index]
        if self.origins is not None:
            made.origins = self.origins[index]
        made.identify = self.identify
        return made

    def pick_later(self, index: Positions) -> Rows:
        """The rows that `pick` returns, without copying them yet."""
        assert self._records is None
        made = self.cut(0, self.count, copy=True)
        made.count = len(index)
        made._chosen = index if self._chosen is None else self._chosen[index]
        made.keys = None if self.keys is None else self.keys[index]
        made.places = None if self.places is None else self.places[index]
        made.origins = None if self.origins is None else self.origins[index]
        return made

    def cut(self, start: int, stop: int, *, copy: bool = False) -> Rows:
        """The rows from ``start`` to ``stop``; views, where they are columns."""
        if start == 0 and stop == self.count and not copy:
            return self
        made = Rows.__new__(Rows)
        made.count, made.padding = stop - start, self.padding
        made._records = None if self._records is None else self._records[start:stop]
        if copy or self._records is not None:
            made._tree, made._leaves, made._chosen = self._tree, self._leaves, self._chosen
            made._structure = self._structure
        elif self._chosen is None:
            made._tree, made._structure = _NOT_BUILT, self.structure
            made._leaves = [leaf[start:stop] for leaf in self.leaves]
            made._chosen = None
        else:
            # Split into records here, once, and not again by every part.
            made._tree, made._structure, made._leaves = self._tree, self.structure, self.leaves
            made._chosen = self._chosen[start:stop]
        made.keys = None if self.keys is None else self.keys[start:stop]
        made.places = None if self.places is None else self.places[start:stop]
        made.origins = None if self.origins is None else self.origins[start:stop]
        made.identify = self.identify
        return made

    def windows(self, window: int) -> Iterator[tuple[int, int, int]]:
        """The number, first and last row of each window that has any."""
        if not self.count:
            return
        assert self.places is not None
        numbers = self.places // window
        borders = np.flatnonzero(np.diff(numbers)) + 1
        starts = [0, *borders.tolist()]
        for start, stop in zip(starts, [*starts[1:], self.count], strict=True):
            yield int(numbers[start]), start, stop

    def write(self, targets: Sequence[Array], start: int) -> None:
        """Copies the columns into arrays, from a row on."""
        stop, chosen = start + self.count, self._chosen
        for target, leaf in zip(targets, self.leaves, strict=True):
            if chosen is None:
                target[start:stop] = leaf
            else:
                take_rows(leaf, chosen, target[start:stop])

    # Messages ---------------------------------------------------------------------------------

    def identity(self, number: int) -> tuple[int | None, str]:
        """The index of a row in its source, if it is known, and its name."""
        if self.identify is None:
            return None, f"row {number} of its unit"
        assert self.origins is not None
        return self.identify(int(self.origins[number]))

    def name(self, number: int) -> str:
        return self.identity(number)[1]

    def name_after(self, made: Rows, members: Sequence[Sequence[int]]) -> Rows:
        """Gives rows that were made of these the names of all that each was made of."""
        each = [[self.identity(number) for number in numbers] for numbers in members]
        names = [" ".join(name for _, name in one) for one in each]
        made = made.cut(0, made.count, copy=True)
        made.identify = named(names, [one[0][0] if one else None for one in each])
        made.origins = np.arange(made.count)
        return made

    def fail(self, stage: str) -> Fail:
        """A function that makes the errors of a stage on these rows."""

        def fail(number: int | None, error: BaseException) -> LoaderxError:
            if number is None:
                return failed(stage, f"a run of {self.count} records", None, error)
            index, name = self.identity(number)
            return failed(stage, name, index, error)

        return fail


_NOT_STACKED = (  # there is no `batch` yet that could pad
    "Drop or pad that leaf in a .map() before it; where batched=True is given, it can also be left "
    "out."
)


def _taken(leaves: Sequence[Array], rows: Positions, lend: Lend | None) -> list[Array]:
    if lend is None:
        return [taken(leaf, rows) for leaf in leaves]
    targets = lend(Layout.of(*[((len(rows), *leaf.shape[1:]), leaf.dtype) for leaf in leaves]))
    for leaf, target in zip(leaves, targets, strict=True):
        take_rows(leaf, rows, target)
    return targets


def named(names: Sequence[str], indices: Sequence[int | None] | None = None) -> Identify:
    """Identities from lists."""

    def identify(origin: int) -> tuple[int | None, str]:
        return None if indices is None else indices[origin], names[origin]

    return identify


# Several rows as one ----------------------------------------------------------------------------


def joined_keys(parts: Sequence[Rows]) -> Keys | None:
    """The keys of all rows; None where no stage draws."""
    if not parts or parts[0].keys is None:
        return None
    if len(parts) == 1:
        return parts[0].keys
    return np.concatenate([part.keys for part in parts if part.keys is not None])


def fit_together(parts: Sequence[Rows]) -> bool:
    """Whether the columns can be joined as they are."""
    first = parts[0]
    if not first.is_stacked:
        return False
    if len(parts) == 1:
        return True
    looks = [(leaf.dtype, leaf.shape[1:]) for leaf in first.leaves]
    return all(
        part.is_stacked
        and part.structure is first.structure
        and [(leaf.dtype, leaf.shape[1:]) for leaf in part.leaves] == looks
        for part in parts[1:]
    )


def joined(parts: Sequence[Rows]) -> Rows:
    """The rows of all parts, in this order: columns where they look alike, else records.

    Identities are kept if all parts share them, as the windows of a unit do.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    if fit_together(parts):
        columns = zip(*[flatten(part.tree)[0] for part in parts], strict=True)
        tree = first.structure.build([np.concatenate(column) for column in columns])
        made = Rows.of_columns(tree, sum(part.count for part in parts))
    else:  # other columns or dtypes: the stage that stacks the records will report it
        made = Rows.of_records([record for part in parts for record in part.records()])
    made.keys = joined_keys(parts)
    if first.places is not None:
        made.places = np.concatenate([_places(part) for part in parts])
    if first.origins is not None and all(part.identify is first.identify for part in parts):
        made.origins = np.concatenate([_origins(part) for part in parts])
        made.identify = first.identify
    return made


def _places(rows: Rows) -> Positions:
    return _NOTHING if rows.places is None else rows.places


def _origins(rows: Rows) -> Positions:
    return _NOTHING if rows.origins is None else rows.origins


def as_batch(parts: Sequence[Rows], lend: Lend, padding: Padding = NO_PADDING) -> Tree:
    """All rows as one batch, in arrays that the caller owns."""
    if not fit_together(parts):
        records = [record for part in parts for record in part.records()]
        names: list[str] = []
        for part in parts:
            first = len(names)
            names += [
                f"row {first + number} of the batch" if part.identify is None else part.name(number)
                for number in range(part.count)
            ]
        return stack(records, lend, names.__getitem__, padding)
    first_part = parts[0]
    count = sum(part.count for part in parts)
    shapes = [((count, *leaf.shape[1:]), leaf.dtype) for leaf in first_part.leaves]
    targets = lend(Layout.of(*shapes))
    start = 0
    for part in parts:
        part.write(targets, start)
        start += part.count
    return first_part.structure.build(targets)


def interleaved(parts: Sequence[tuple[int, npt.NDArray[np.intp], Rows]], count: int) -> Rows:
    """Rows of several datasets, those of each at the given places."""
    each = [rows for _, _, rows in parts]
    keys = joined_keys(each)
    if keys is not None:
        placed = np.empty_like(keys)
        placed[np.concatenate([places for _, places, _ in parts])] = keys
        keys = placed
    if fit_together(each):
        first = each[0]
        leaves = [np.empty((count, *leaf.shape[1:]), leaf.dtype) for leaf in first.leaves]
        for _, places, rows in parts:
            for target, leaf in zip(leaves, rows.leaves, strict=True):
                target[places] = leaf if rows.chosen is None else leaf[rows.chosen]
        tree = first.structure.build(leaves)
        return Rows.of_columns(tree, count, keys, padding=first.padding)
    records: list[Record] = [None] * count
    names = [""] * count
    indices: list[int | None] = [None] * count
    for dataset, places, rows in parts:
        for number, (place, record) in enumerate(zip(places.tolist(), rows.records(), strict=True)):
            index, name = (None, "a row") if rows.identify is None else rows.identity(number)
            records[place], names[place] = record, f"{name} of dataset {dataset}"
            indices[place] = index
    return Rows.of_records(records, keys, identify=named(names, indices))


# Results of functions ---------------------------------------------------------------------------


def rows_of(tree: Tree, count: int, fail: Fail) -> Rows:
    """The rows that a function returned: columns, or lists of rows that differ in shape."""
    problem = rows_problem(tree, count)
    if problem is None:
        return Rows.of_columns(tree, count)
    records = records_of(tree, count)
    if records is None:
        if miscounted := wrong_rows(tree, count):
            raise fail(None, StackError(f"{miscounted}: it must return one for each."))
        also = f"Lists of {count} rows, which may differ in length, will do, too."
        raise fail(None, StackError(f"{problem} {also}"))
    return Rows.of_records(records)


def rows_problem(tree: Tree, count: int) -> StackError | None:
    """Describes why a batch does not have ``count`` rows; None if it has."""
    for leaf in flatten(tree)[0]:
        if not isinstance(leaf, np.ndarray) or leaf.ndim == 0 or len(leaf) != count:
            return StackError(
                f"it must return arrays of {count} rows, one for each record it was given; "
                f"got {_shape_of(leaf)}."
            )
    return None


def _shape_of(leaf: object) -> str:
    if isinstance(leaf, np.ndarray):
        return f"an array of shape {leaf.shape}"
    if isinstance(leaf, list):
        return f"a list of length {len(leaf)}"
    return f"a {type(leaf).__name__}"
