"""Frames of pandas and polars, and tables of pyarrow, whose missing values are filled or kept.

They are read as files are: by way of Arrow, into columns of the same types.  Other frames stay the
arrays that they are (`sources.adapt.frames`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from loaderx.errors import ArgumentError, ArgumentTypeError, one_line
from loaderx.sources.adapt.frames import is_frame
from loaderx.sources.adapt.huggingface import takes_slices
from loaderx.sources.columns.categories import Categories
from loaderx.sources.columns.data import ColumnData
from loaderx.sources.columns.gaps import keeping
from loaderx.sources.columns.table import TableSource
from loaderx.sources.format import MissingArgument, OpenOptions, open_options
from loaderx.sources.formats.arrow.columns import arrow_columns
from loaderx.sources.formats.arrow.objects import HuggingFace
from loaderx.sources.formats.arrow.shard_types import ShardTypes
from loaderx.sources.formats.arrow.types import import_pyarrow
from loaderx.sources.native.copies import in_memory

if TYPE_CHECKING:
    import pyarrow as pa

_WHERE = "the table"


class FrameSource(TableSource):
    """The records of a table in memory."""

    is_mapped = False

    def __init__(self, arrow: pa.Table, options: OpenOptions, label: str) -> None:
        found = _Batches(arrow, options)
        coder = Categories(options.categories, found.kinds)
        columns, classes = in_memory(found, coder, options, _WHERE)
        super().__init__(columns, arrow.num_rows, label=label, classes=classes)

    def label(self) -> str:
        return super().label().replace("open(", "from_source(", 1)


class _Batches:
    """The batches of a table; `CopiedFiles`."""

    def __init__(self, arrow: pa.Table, options: OpenOptions) -> None:
        self._arrow, self._fill = arrow, options.fill
        types = ShardTypes(arrow.schema, _WHERE, None)
        self.kinds, self.classes = keeping(types.kinds, options), types.classes
        self.counts, self.nbytes = [arrow.num_rows], arrow.nbytes

    def steps(self) -> Iterator[Mapping[str, ColumnData]]:
        for batch in self._arrow.to_batches():
            yield arrow_columns(batch, list(self.kinds), self.kinds, self._fill, _WHERE)


def table_source(
    obj: object,
    fill: Mapping[str, object] | None,
    missing: MissingArgument,
    types: Mapping[str, object] | None,
) -> TableSource:
    """The records of a user's table, with options for its missing values and its types."""
    options = open_options(None, True, fill, False, missing, types)
    if takes_slices(obj):
        dataset: Any = obj
        if not types:
            return HuggingFace(dataset, fill=fill, missing=missing)
        obj = dataset.with_format("arrow")[:]
    if not is_frame(obj):
        raise ArgumentTypeError(
            "`fill`, `missing` and `types` are for tables of pandas, polars, pyarrow and Hugging "
            f"Face, and this is {type(obj).__name__}. Sources such as loaderx.sources.Csv have "
            "these arguments themselves; other records are changed in a .map()."
        )
    import_pyarrow("a table with `fill`, `missing` or `types`")
    options.check_types_are_categories(_WHERE)
    label = options.label(type(obj).__name__)
    arrow, options = _arrow_of(obj, options)
    options.check_names(arrow.schema.names, _WHERE)
    if not arrow.num_rows:
        raise ArgumentError("the table is empty: it has no rows.")
    return FrameSource(arrow, options, label)


def _arrow_of(frame: Any, options: OpenOptions) -> tuple[pa.Table, OpenOptions]:
    """A frame as an Arrow table, and the options for it."""
    import pyarrow as pa

    if hasattr(frame, "to_arrow"):  # polars
        return frame.to_arrow(), options
    if not hasattr(frame, "iloc"):
        return pa.table(frame), options
    try:
        arrow = pa.Table.from_pandas(frame, preserve_index=False)
    except pa.ArrowException as error:
        raise ArgumentTypeError(f"{_WHERE} has no types of Arrow: {one_line(error)}.") from error
    # NaN and NaT in arrays of NumPy are values, unless something else is asked for.
    kept = {
        str(name): "nan"
        for name, dtype in frame.dtypes.items()
        if isinstance(dtype, np.dtype) and dtype.kind in "fmM" and not options.keeps(str(name))
    }
    words = options.missing
    return arrow, options.replace(missing=words.replace(by_column={**kept, **words.by_column}))
