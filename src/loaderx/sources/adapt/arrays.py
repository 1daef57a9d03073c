"""Records that are rows of arrays: in memory, memory-mapped, or lazy (h5py, zarr, ...)."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeGuard

import numpy as np

from loaderx.errors import ArgumentError, ArgumentTypeError, LoaderxError
from loaderx.gathering import take_rows, taken, taker
from loaderx.memory import Layout, Lend
from loaderx.sources.adapt.bulk import INDEXING, BulkReads
from loaderx.sources.adapt.checks import is_indexed
from loaderx.sources.adapt.frames import without_frames
from loaderx.sources.base import Gather, Indices, OwnSource
from loaderx.tree import (
    Array,
    ArraySpec,
    DType,
    Leaf,
    Structure,
    Tree,
    as_array,
    flatten,
    is_array_like,
)

if TYPE_CHECKING:
    from loaderx.sources.files.cold import ColdReads

_THREAD_SAFE_LAZY = ("h5py", "zarr", "loaderx")
_MOST_LISTED = 8  # longest list of arrays that is taken as columns; a tuple may be longer
_SHOWN = 5


class LazyArray(Protocol):
    """An array on disk, read by indexing: h5py, zarr, a member of a compressed ``.npz``."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> DType: ...
    def __getitem__(self, index: slice | Indices, /) -> Leaf: ...


class ArraySource(OwnSource):
    """A tree of arrays with one leading length: record i is row i of every leaf."""

    only_gathers = True
    identifies_data = True  # of mapped files; arrays in memory are sent as they are

    def __init__(self, tree: Tree, made_by: str = "from_arrays") -> None:
        self._made_by = made_by
        tree, self._ragged = without_frames(_rows_of_lists(tree))
        leaves, self._structure = flatten(tree)
        paths = self._structure.paths()
        if not leaves:
            raise ArgumentError("`from_arrays` needs at least one array.")
        self._leaves: list[Leaf] = [
            _leaf(leaf, path) for leaf, path in zip(leaves, paths, strict=True)
        ]
        lengths = [leaf.shape[0] for leaf in self._leaves]
        if len(set(lengths)) > 1:
            raise ArgumentError(_unequal(paths, lengths, tree))
        if lengths[0] == 0:
            raise ArgumentError(f"the dataset is empty: {_named(paths[0])} has length 0.")
        self._length = int(lengths[0])
        self._in_memory = all(isinstance(leaf, np.ndarray) for leaf in self._leaves)
        self._layouts: dict[int, Layout] = {}
        self._bulk: BulkReads | None = None  # made when a lazy leaf fails
        self._cold = _cold_reads(self._leaves)

    def __len__(self) -> int:
        return self._length

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_layouts": {}, "_cold": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._cold = _cold_reads(self._leaves)

    @property
    def spec(self) -> Tree | None:
        if self._ragged:
            return None
        return self._structure.build(
            ArraySpec(tuple(leaf.shape[1:]), leaf.dtype) for leaf in self._leaves
        )

    @property
    def structure(self) -> Structure:
        return self._structure

    @property
    def thread_safe(self) -> bool:
        return all(
            isinstance(leaf, np.ndarray)
            or type(leaf).__module__.partition(".")[0] in _THREAD_SAFE_LAZY
            for leaf in self._leaves
        )

    @property
    def gathers(self) -> bool:
        return not self._ragged  # ragged records are read one by one, and padded or packed later

    @property
    def arrays(self) -> list[Array] | None:
        """The arrays whose rows are the records; None if some are lazy, or rows differ."""
        return self._leaves if self._in_memory and not self._ragged else None

    def chunks(self) -> Indices | None:
        """Where chunks of lazy arrays begin: those of the array that has the most rows in one."""
        found = [getattr(leaf, "chunks", None) for leaf in self._leaves]
        rows = [chunk[0] for chunk in found if chunk and isinstance(chunk[0], int)]
        return np.append(np.arange(0, self._length, max(rows)), self._length) if rows else None

    @property
    def is_mapped(self) -> bool:
        """True if rows may come from disk."""
        return self._cold is not None

    def label(self) -> str:
        if self._ragged:
            return f"{self._made_by}({', '.join(self._structure.paths())})"
        return f"{self._made_by}({describe_spec(self.spec)})"

    def gather(self, indices: Indices, lend: Lend) -> Tree:
        count = len(indices)
        layout = self._layouts.get(count)
        if layout is None:
            layout = Layout.of(*[((count, *leaf.shape[1:]), leaf.dtype) for leaf in self._leaves])
            self._layouts[count] = layout
        out = lend(layout)
        if self._cold is not None:
            self._cold.before(indices)
        if self._in_memory:
            for leaf, target in zip(self._leaves, out):  # noqa: B905 (a hot loop)
                take_rows(leaf, indices, target)
        else:
            self._read_lazily(indices, out)
        return self._structure.build(out)

    def leaf(self, path: str) -> ArraySource | None:
        named = dict(zip(self._structure.paths(), self._leaves, strict=True))
        return None if self._ragged or path not in named else ArraySource({path: named[path]})

    def window(self, start: int, stop: int) -> Tree | None:
        """Consecutive records stacked, as read-only views; None if lazy, or of unequal lengths."""
        if not self._in_memory or self._ragged:
            return None
        return self._structure.build([leaf[start:stop] for leaf in self._leaves])

    def gatherer(self, rows: int) -> Gather:
        if not self._in_memory or not self._structure.is_flat_dict:
            return self.gather
        gather = gatherer_of(self._structure.keys, self._leaves, rows)
        if self._cold is None:
            return gather
        before = self._cold.before

        def gather_mapped(indices: Indices, lend: Lend) -> Tree:
            before(indices)
            return gather(indices, lend)

        return gather_mapped

    def _read_lazily(self, indices: Indices, out: list[Array]) -> None:
        for number, target in enumerate(out):
            target[...] = self._rows(number, indices)

    def _rows(self, number: int, indices: Indices) -> Array:
        """Rows of a leaf that may be lazy."""
        leaf = self._leaves[number]
        if isinstance(leaf, np.ndarray):
            return leaf[indices]
        try:
            return read_lazy(leaf, indices)
        except LoaderxError:
            raise
        except Exception as error:
            # If a row cannot be read alone either, this raises that row's own error.
            rows = [np.asarray(leaf[i : i + 1]) for i in indices.tolist()]
            if self._bulk is None:
                self._bulk = BulkReads(_named(self._structure.paths()[number]), INDEXING)
            self._bulk.failed(error, [row[0] for row in rows])
            return np.concatenate(rows)

    def records(self, indices: Indices) -> list[Tree]:
        structure = self._structure
        if self._in_memory:
            where = indices.tolist()
            columns = [list(map(leaf.__getitem__, where)) for leaf in self._leaves]
        else:
            columns = [list(self._rows(number, indices)) for number in range(len(self._leaves))]
        if structure.is_flat_dict:
            # Leaf by leaf: five times as fast as a dict(zip(...)) for each record.
            first, *others = structure.keys
            records: list[Tree] = [{first: leaf} for leaf in columns[0]]
            for key, column in zip(others, columns[1:], strict=True):
                for record, leaf in zip(records, column):  # noqa: B905 (a hot loop)
                    record[key] = leaf
            return records
        return [structure.build(row) for row in zip(*columns, strict=True)]


def gatherer_of(names: Sequence[Hashable], columns: Sequence[Array], rows: int) -> Gather:
    """A `gather` of ``rows`` rows of these columns, with all lookups done beforehand."""
    layout = Layout.of(*[((rows, *column.shape[1:]), column.dtype) for column in columns])
    takes = [taker(column) for column in columns]

    def gather(indices: Indices, lend: Lend) -> Tree:
        out = lend(layout)
        for take, target in zip(takes, out):  # noqa: B905 (a hot loop)
            take(indices, 0, target, "clip")
        return dict(zip(names, out))  # noqa: B905 (a hot loop)

    return gather


def _unequal(paths: list[str], lengths: list[int], tree: Tree) -> str:
    found = list(zip(paths, lengths, strict=True))
    odd = next(pair for pair in found if pair[1] != lengths[0])
    shown = found if len(found) <= _SHOWN else [*found[: _SHOWN - 1], odd]
    listed = ", ".join(f'"{path}" has {n}' for path, n in dict.fromkeys(shown))
    more = f" ({len(found)} arrays in all)" if len(found) > _SHOWN else ""
    parts = [tree, *(tree.values() if isinstance(tree, dict) else ())]
    advice = f" {_RECORDS}" if any(map(_is_list_of_arrays, parts)) else ""
    return f"arrays must have equal leading lengths: {listed}{more}.{advice}"


_RECORDS = (
    "Here a list of arrays means columns. For one array per record write "
    "np.stack(images), or Dataset.from_source(a_list)."
)


def _is_list_of_arrays(value: object) -> bool:
    return isinstance(value, list) and bool(value) and is_array_like(value[0])


def _rows_of_lists(tree: Tree, path: str = "") -> Tree:
    """The tree with lists of lists (small matrices written by hand) as arrays; groups as dicts."""
    if is_group(tree):
        tree = dict(sorted([*tree.arrays(), *tree.groups()]))  # listed as the store has them
    if is_sparse(tree):
        return tree.tocsr()  # one kind of them is a dict
    if isinstance(tree, dict):
        return {key: _rows_of_lists(value, f"{key}") for key, value in tree.items()}
    if _is_list_of_arrays(tree) and len(tree) > _MOST_LISTED and not np.isscalar(tree[0]):
        raise ArgumentTypeError(
            f"{_given(path)} a list of {len(tree)} arrays. {_RECORDS} If they are columns, give a "
            "tuple."
        )
    if isinstance(tree, list) and tree and all(isinstance(row, list) for row in tree):
        try:
            numbers = np.asarray(tree)
        except ValueError as error:
            key = path or "x"
            raise ArgumentError(
                f"{_given(path)} a list of rows of unequal length, which is not an array. Write "
                f'Dataset.from_source([{{"{key}": row}} for row in rows]), and '
                f'.batch(n, pad_to={{"{key}": length}}).'
            ) from error
        kinds = {type(value) for row in tree for value in row}
        if kinds <= {bool, int, float, complex}:  # Python numbers get the dtypes of JAX
            return as_array(numbers.reshape(-1).tolist()).reshape(numbers.shape)
        return numbers
    return tree


def is_sparse(obj: object) -> TypeGuard[Leaf]:
    """True for a sparse matrix of scipy, which is not imported here."""
    kind = type(obj)
    return kind.__module__.startswith("scipy.sparse") and hasattr(kind, "tocsr")


def is_group(obj: object) -> TypeGuard[Tree]:
    """True for a group of arrays of zarr; those of h5py are mappings."""
    return hasattr(type(obj), "arrays") and hasattr(type(obj), "groups")


def _is_mapped(array: Array) -> bool:
    """True for a memory map or a view of one."""
    base: object = array
    while base is not None and not isinstance(base, np.memmap):
        base = getattr(base, "base", None)
    return base is not None


def _cold_reads(leaves: Sequence[Leaf]) -> ColdReads | None:
    """The hints for rows that may come from disk; None if all are in memory."""
    arrays = [leaf for leaf in leaves if isinstance(leaf, np.ndarray)]
    if not any(map(_is_mapped, arrays)):
        return None
    from loaderx.sources.files.cold import ColdReads  # late: most arrays are in memory

    cold = ColdReads(arrays)
    return cold if cold.is_needed else None


def _rows_of_h5(leaf: Leaf) -> Array | None:
    """The mapped rows of an HDF5 dataset; None for anything that cannot be mapped."""
    if "h5py" not in sys.modules:
        return None
    from loaderx.sources.adapt.h5_datasets import is_h5_dataset, mapped_rows  # late: few have any

    return mapped_rows(leaf) if is_h5_dataset(leaf) else None


def _leaf(leaf: Leaf, path: str) -> Array | LazyArray:
    """An array as a read-only view, or a lazy array unchanged."""
    if isinstance(leaf, np.ndarray):
        if _is_mapped(leaf):
            from loaderx.sources.mapping import remember  # late: most arrays are in memory

            remember(leaf)
        array = np.asarray(leaf)  # a memory map becomes a plain array on the same pages
    elif (rows := _rows_of_h5(leaf)) is not None:
        array = rows
    elif is_sparse(leaf):
        from loaderx.sources.adapt.sparse_rows import SparseRows  # late: few have any

        return SparseRows(leaf)
    elif np.isscalar(leaf):
        raise ArgumentTypeError(f"{_named(path)} is {leaf!r}, not an array.")
    elif _is_lazy(leaf):
        if not leaf.shape:
            raise ArgumentTypeError(f"{_named(path)} has no leading axis of records.")
        lazy: LazyArray = leaf
        return lazy
    else:
        array = as_array(leaf)
    if array.ndim == 0 and is_indexed(leaf):
        raise ArgumentTypeError(
            f"{_named(path)} has the type {type(leaf).__name__}, which is read by record: write "
            "Dataset.from_source(...)."
        )
    if array.ndim == 0:
        raise ArgumentTypeError(
            f"{_named(path)} has no leading axis of records (it is a single {array.dtype})."
        )
    view = array.view()
    view.flags.writeable = False  # an in-place `map` must not change the data
    return view


def _is_lazy(leaf: object) -> bool:
    """True for an array on disk, as of h5py and zarr.  Tensors in memory have DLPack."""
    needed = ("shape", "dtype", "__getitem__")
    in_memory = hasattr(leaf, "__dlpack__") or hasattr(leaf, "iloc")  # tensors; pandas
    return all(hasattr(leaf, name) for name in needed) and not in_memory


def read_lazy(leaf: LazyArray, indices: Indices) -> Array:
    """Rows of a lazy array, read by slices and ascending indices: fast in all such libraries."""
    if hasattr(leaf, "whole"):  # a member of a compressed .npz, unpacked once
        return taken(np.asarray(leaf.whole()), indices)
    if not len(indices):
        return np.asarray(leaf[0:0])
    rows, inverse = np.unique(indices, return_inverse=True)
    first, last = int(rows[0]), int(rows[-1])
    if last - first < 2 * len(rows):  # dense: one slice is faster than single rows
        return np.asarray(leaf[first : last + 1])[indices - first]
    index = getattr(leaf, "oindex", leaf)  # zarr takes lists of rows only there
    return np.asarray(index[rows])[inverse.reshape(-1)]


def _given(path: str) -> str:
    return f'leaf "{path}" is' if path else "this is"


def _named(path: str) -> str:
    return f'leaf "{path}"' if path else "the array"


def describe_spec(spec: Tree) -> str:
    """A record's spec in one line, cut where it gets long."""
    leaves, structure = flatten(spec)
    paths: Sequence[str] = structure.paths()
    parts = [
        f"{path}={leaf!r}" if path else repr(leaf) for path, leaf in zip(paths, leaves, strict=True)
    ]
    shown = parts if len(parts) <= 6 else [*parts[:5], f"... {len(parts) - 5} more"]
    return ", ".join(shown)
