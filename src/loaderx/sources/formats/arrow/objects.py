"""Datasets of Hugging Face's `datasets` as objects, read from their Arrow tables by address.

`recognised` returns the values that indexing the object returns, of the same types, but faster:
Python numbers, text, bytes, lists and dicts.  A dataset with a format, a transform, images or
times is left to its own code.

`HuggingFace` gives the records that `Dataset.open` makes of the same dataset on disk: arrays in
their own dtypes, which is faster still for lists of numbers, and images decoded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from loaderx.errors import ArgumentError, ArgumentTypeError
from loaderx.sources.base import Source
from loaderx.sources.columns.column import Column
from loaderx.sources.columns.data import ColumnType
from loaderx.sources.columns.derived_columns import ColumnOver
from loaderx.sources.columns.table import TableSource
from loaderx.sources.files.parts import Located
from loaderx.sources.format import MissingArgument, open_options
from loaderx.sources.formats.arrow.addresses import Addresses, node_of
from loaderx.sources.formats.arrow.columns import filler
from loaderx.sources.formats.arrow.elements import RecordBatches, Slots
from loaderx.sources.formats.arrow.readers import ColumnBuilder
from loaderx.sources.formats.arrow.shard_types import ShardTypes
from loaderx.sources.formats.arrow.table import (
    Leaf,
    build_columns,
    index_column,
    leaves_of,
    words_of,
)
from loaderx.sources.formats.arrow.types import Features, column_type, stored_type, type_at
from loaderx.tree import Array, ArraySpec, flatten

if TYPE_CHECKING:
    import pyarrow as pa

_PAGE = 4096  # below this address there is no data in any process
_MOST = 1 << 62
_NARROW = {"b": np.bool_, "i": np.int32, "u": np.int32, "f": np.float32}
_PLAIN_FEATURES = (
    "Value", "ClassLabel", "Sequence", "List", "LargeList", "Translation",
    "Array2D", "Array3D", "Array4D", "Array5D",
)  # fmt: skip


class _ArrowTable(Protocol):
    @property
    def table(self) -> pa.Table: ...


class HubDataset(Protocol):
    """The part of a `datasets.Dataset` that is used."""

    @property
    def data(self) -> _ArrowTable: ...

    @property
    def features(self) -> Mapping[str, object]: ...

    @property
    def format(self) -> Mapping[str, object]: ...

    _indices: _ArrowTable | None

    def __len__(self) -> int: ...


class NotReadableError(Exception):
    """Raised if the table has something that is not read by address."""


class TableInMemory:
    """Where the columns of a table lie in this process, mapped or not."""

    def __init__(self, table: pa.Table) -> None:
        self.schema, self._table = table.schema, table
        batches = [batch for batch in table.to_batches() if len(batch)]
        nodes = {field.name: node_of(field.type) for field in table.schema}
        if not batches or len(nodes) < table.num_columns or None in nodes.values():
            raise NotReadableError
        self.nodes = {name: node for name, node in nodes.items() if node is not None}
        found = Addresses(_PAGE, _MOST)
        self.slots: dict[str, Slots] = {}
        for place, (name, node) in enumerate(self.nodes.items()):
            each = [list(found.slots(batch.column(place), node)) for batch in batches]
            self.slots[name] = np.array(each, np.int64).T
        self._size = found.highest
        self.rows = np.array([len(batch) for batch in batches], np.int64)

    def data(self, number: int, /) -> Array:
        """The memory of this process up to the table's end; only the table's buffers are read."""
        import pyarrow as pa

        return np.frombuffer(pa.foreign_buffer(_PAGE, self._size, self._table), np.uint8)

    def batches(self, chosen: Column | None = None) -> RecordBatches:
        return RecordBatches(self, [len(self.rows)], self.rows, chosen)


def _batches_of(dataset: HubDataset, table: TableInMemory) -> RecordBatches:
    """The batches of a dataset, with its choice of rows, if there is one."""
    if dataset._indices is None:
        return table.batches()
    import pyarrow as pa

    chosen = dataset._indices.table
    (name,) = chosen.schema.names
    indices = TableInMemory(chosen.cast(pa.schema([(name, pa.uint64())])))  # the usual type
    return table.batches(index_column(indices.batches(), indices.nodes[name], indices.slots[name]))


# The same values as by indexing -----------------------------------------------------------------


def recognised(obj: object) -> Source | None:
    """A source of the records that indexing returns; None if they are better read by indexing."""
    kind = type(obj)  # a subclass may read in its own way
    if (kind.__module__, kind.__name__) != ("datasets.arrow_dataset", "Dataset"):
        return None
    try:
        return PlainTable(cast(HubDataset, obj))
    except (NotReadableError, AttributeError):  # another version may have other attributes
        return None


class PlainTable(TableSource):
    """The records of a `datasets.Dataset` without a format."""

    is_mapped = False  # not by loaderx
    reads_behind = False  # the array is all of this process's memory

    def __init__(self, dataset: HubDataset) -> None:
        self._dataset = dataset
        told, names = dataset.format, dataset.data.table.schema.names
        if (
            told["type"] is not None
            or sorted(cast(list[str], told["columns"])) != sorted(names)
            or not len(dataset)
        ):
            raise NotReadableError
        if not all(map(_is_plain, _json(dataset.features).values())):
            raise NotReadableError
        table = TableInMemory(dataset.data.table)
        leaves = [leaf for name in table.nodes for leaf in _plain_leaves(table, name)]
        # A null is None; but where a whole dict is null, records have various structures.
        if any(leaf.has_inner_nulls or leaf.has_nulls_above for leaf in leaves):
            raise NotReadableError
        batches = _batches_of(dataset, table)
        missing = {leaf.name: None for leaf in leaves if leaf.has_nulls}
        columns, structure = flatten(build_columns(batches, leaves, missing, is_plain=True))
        made = [_as_stacked(batches, *pair) for pair in zip(leaves, columns, strict=True)]
        classes = Features(_json(dataset.features)).classes()
        super().__init__(structure.build(made), len(dataset), label="", classes=classes)

    def label(self) -> str:
        return f"from_source({type(self._dataset).__name__}, {len(self)} records)"

    def __reduce__(self) -> tuple[object, ...]:
        return PlainTable, (self._dataset,)


class _PlainColumn(ColumnOver):
    """Values as indexing gives them; stacked, numbers have the dtype that JAX gives them."""

    def __init__(self, column: Column, numbers: Column | None) -> None:
        super().__init__(column)
        self._numbers = numbers

    @property
    def spec(self) -> ArraySpec | None:
        wide = None if self._numbers is None else self._numbers.spec
        if wide is None:
            return None
        return ArraySpec(wide.shape, np.dtype(_NARROW[wide.dtype.kind]))

    def take(self, at: Located, out: Array) -> None:
        assert self._numbers is not None
        assert self._numbers.spec is not None
        if self._numbers.spec.dtype == out.dtype:
            self._numbers.take(at, out)
            return
        wide = np.empty(out.shape, self._numbers.spec.dtype)
        self._numbers.take(at, wide)
        _narrow(wide, out)

    def values(self, at: Located) -> Sequence[object]:
        return self._column.values(at)


def _plain_leaves(table: TableInMemory, name: str) -> list[Leaf]:
    arrow = table.schema.field(name).type
    if "fixed_size_binary" in str(stored_type(arrow)):  # bytes in `datasets`, arrays in loaderx
        raise NotReadableError
    kind = column_type(arrow, None, name)
    if _has_times(kind):
        raise NotReadableError
    return list(leaves_of(kind, table.nodes[name], table.slots[name], (name,)))


def _has_times(kind: ColumnType) -> bool:
    own = kind.dtype is not None and kind.dtype.kind in "mM"
    return own or any(map(_has_times, kind.fields.values()))


def _json(features: Mapping[str, object]) -> Mapping[str, object]:
    told = features.to_dict()  # type: ignore[attr-defined]
    assert isinstance(told, Mapping)
    return told


def _is_plain(feature: object) -> bool:
    """True if indexing returns Arrow's own Python values."""
    if isinstance(feature, list):
        return all(map(_is_plain, feature))
    if not isinstance(feature, Mapping):
        return False
    kind = feature.get("_type")
    if not isinstance(kind, str):
        return all(map(_is_plain, feature.values()))
    if kind in ("Image", "Audio") and feature.get("decode") is False:
        return True
    inner = feature.get("feature")
    return kind in _PLAIN_FEATURES and (inner is None or _is_plain(inner))


def _as_stacked(batches: RecordBatches, leaf: Leaf, column: Column) -> Column:
    """The column with a spec, unless records are lists in lists, or have nulls."""
    kind = leaf.kind
    if kind.kind in ("text", "bytes") and not leaf.has_nulls:
        return column
    is_stacked = kind.kind == "fixed" and len(kind.shape) < 2 and 0 not in kind.shape
    if leaf.has_nulls or not is_stacked:
        return _PlainColumn(column, None)
    return _PlainColumn(column, ColumnBuilder(batches).numbers(kind, leaf.node, leaf.slots))


def _narrow(wide: Array, out: Array) -> None:
    """Numbers that do not fit are left to `records`: stacking these names the number."""
    with np.errstate(over="ignore", invalid="ignore"):
        out[:] = wide.astype(out.dtype)
    if wide.dtype.kind == "f":
        fits = np.array_equal(np.isfinite(wide), np.isfinite(out))
    else:
        fits = wide.dtype.itemsize < 4 or bool((out == wide).all())
    if not fits:
        raise NotReadableError


# Arrays in their own dtypes ---------------------------------------------------------------------


class HuggingFace(TableSource):
    """A `datasets.Dataset` as `Dataset.open` reads it from disk, whatever its format is.

    >>> Dataset.from_source(HuggingFace(dataset, columns=["tokens"]))  # doctest: +SKIP
    """

    is_mapped = False  # not by loaderx
    reads_behind = False  # the array is all of this process's memory

    def __init__(
        self,
        dataset: HubDataset,
        *,
        columns: Sequence[str] | None = None,
        decode: bool = True,
        fill: Mapping[str, object] | None = None,
        missing: MissingArgument = "error",
    ) -> None:
        self._made_again = partial(
            HuggingFace, dataset, columns=columns, decode=decode, fill=fill, missing=missing
        )
        if not hasattr(dataset, "_indices") or not hasattr(dataset, "features"):
            raise ArgumentTypeError(
                f"a datasets.Dataset is needed, got {type(dataset).__name__}. A DatasetDict has "
                "one for each split; a stream goes into Dataset.from_iterable."
            )
        arrow, where = dataset.data.table, "the dataset"
        options = open_options(columns, decode, fill, False, missing)
        options.check_names(arrow.schema.names, where)
        types = ShardTypes(arrow.schema, where, columns, Features(_json(dataset.features)))
        try:
            table = TableInMemory(arrow.select(types.names))
        except NotReadableError as error:
            raise ArgumentError(
                "the dataset is empty, or has columns that are not read where they lie "
                "(dictionaries, views): save it with save_to_disk, and open that."
            ) from error
        leaves = [
            leaf
            for name, kind in types.kinds.items()
            for leaf in leaves_of(kind, table.nodes[name], table.slots[name], (name,))
        ]
        batches, fillers = _batches_of(dataset, table), {}
        for leaf in leaves:
            if leaf.has_nulls and leaf.name in options.fill:
                kind = type_at(arrow.schema, leaf.path)
                fillers[leaf.name] = filler(leaf.kind, kind, options.fill[leaf.name], leaf.name)
        words = words_of(leaves, table.batches(), options, where)
        if inner := [leaf.name for leaf in leaves if leaf.has_inner_nulls]:
            raise ArgumentError(
                f"lists in {', '.join(map(repr, inner))} have nulls, which are filled or kept in "
                "files alone: save the dataset with save_to_disk, and open that."
            )
        tree = build_columns(batches, leaves, fillers, options.decode, words=words)
        label = options.label("huggingface")
        super().__init__(tree, len(dataset), label=label, classes=types.classes)

    def __reduce__(self) -> tuple[object, ...]:
        return self._made_again, ()
