"""`Dataset`: what to load, as a frozen chain of stages.  Building one reads no record."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Generic,
    Literal,
    SupportsIndex,
    TypeAlias,
    TypeVar,
    cast,
    final,
    overload,
)

import numpy as np

from loaderx.chain.describe import describe_chain
from loaderx.chain.functions import resolve
from loaderx.chain.global_generators import SeededMap
from loaderx.chain.leaks import warn_of_changing_parts
from loaderx.chain.node import Node
from loaderx.chain.numbers import check_block, check_window
from loaderx.chain.transforms import Map, MapWithIndex, RandomKeys, RandomMap, Transform
from loaderx.chain.unit_size import check_lanes
from loaderx.errors import (
    ArgumentError,
    ArgumentTypeError,
    ChainError,
    LoaderxError,
    PositionError,
    check_bool,
    check_choice,
    check_int,
    check_name,
    check_seed,
    hidden_by_pytest,
    hide_own_frames,
)
from loaderx.frozen import Frozen
from loaderx.hints import DatasetType, advised, joins, no_buffer
from loaderx.memory import Pool
from loaderx.plans.index_plan import IndexPlan
from loaderx.reading.context import ReadContext
from loaderx.reading.operators import Policy
from loaderx.reading.stacking import Value
from loaderx.sources import ArraySource, RangeSource, Source, adapt
from loaderx.sources.adapt.checks import refuse_sources
from loaderx.stages import nodes as stages
from loaderx.stages.batch import check_padding
from loaderx.stages.select import index_table, slice_text
from loaderx.tree import Array, ArraySpec, HasArray, Leaf, Tree, flatten, map_leaves, spec_of_first

if TYPE_CHECKING:
    from loaderx.display.show import Shown
    from loaderx.plans.records import Provenance, Records
    from loaderx.stages.cache import Kept
    from loaderx.stages.join import Joined
    from loaderx.stages.mixture import MixPlan, Ramp, Weights

T = TypeVar("T")
U = TypeVar("U")

_Missing: TypeAlias = Literal["error", "nan", "valid"]

__tracebackhide__ = hidden_by_pytest

_AT_ONCE = 256  # records whose addresses are looked up together
_IN_NOTEBOOK = 3  # records that a notebook shows
_LOOKED_AT = 16  # elements to look at if the first one has an empty list


@final
class Dataset(Generic[T], metaclass=DatasetType):
    """A description of a stream of records or batches.

    Every method returns a new dataset.  Elements are records up to `batch` and batches after it; a
    function gets one or the other, depending on where in the chain it stands.

    >>> import numpy as np
    >>> ds = Dataset.from_arrays(x=np.arange(6.0), y=np.arange(6) % 2)
    >>> ds = ds.shuffle(seed=1).batch(4).map(lambda batch: {**batch, "x": batch["x"] / 10})
    >>> [batch["x"].shape for batch in ds]
    [(4,), (2,)]
    """

    __slots__ = ("__weakref__", "_node", "_plan")
    _node: Node
    _plan: IndexPlan  # made by the first look at a single element; not part of a pickle

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        data: str | None = None,
        label: str | None = None,
        **more: str,
    ) -> None:
        """Arrays of an ``.npz``, or of a folder of ``.npy``, as records ``{"data", "label"}``.

        ``data`` and ``label`` are the names in the file; ``more`` adds leaves, as ``leaf="name in
        the file"``.
        """
        if path is None or data is None or label is None:
            raise ArgumentTypeError(
                "Dataset(path, data, label) opens two arrays of a file by their names. Other ways "
                "to begin: Dataset.from_arrays(x=..., y=...), from_source(...), open(path), "
                "from_iterable(function)."
            )
        names = {"data": data, "label": label, **more}
        for leaf, name in names.items():
            if not isinstance(name, str):
                raise ArgumentTypeError(
                    f"`{leaf}` must be the name of an array in the file, got "
                    f"{type(name).__name__}. For arrays in memory write "
                    "Dataset.from_arrays(data=..., label=...)."
                )
        arrays = _open_arrays(path, list(dict.fromkeys(names.values())))
        tree = {leaf: arrays[name.removesuffix(".npy")] for leaf, name in names.items()}
        object.__setattr__(self, "_node", stages.FromSource(ArraySource(tree, "open")))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Dataset is frozen; cannot set {name!r}.")

    @classmethod
    def _of(cls, node: Node) -> Dataset[Tree]:
        for below in node.inputs:
            if below.skipped_steps is not None and node.skipped_steps is None:
                raise ChainError(
                    f".{node.stage} after .skip_steps(...): its numbers are steps of the loader, "
                    "so only .take(...) and functions of a batch may follow. Put it last."
                )
        made = object.__new__(cls)
        object.__setattr__(made, "_node", node)
        return made

    def __reduce__(self) -> tuple[object, ...]:
        return Dataset._of, (self._node,)

    # Sources ----------------------------------------------------------------------------------

    @staticmethod
    @advised
    def open(
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        split: str | None = None,
        columns: Sequence[str] | None = None,
        format: str | None = None,
        decode: bool | str | Mapping[str, bool | str] = True,
        fill: Mapping[str, object] | None = None,
        missing: _Missing | Mapping[str, _Missing] = "error",
        types: Mapping[str, object] | None = None,
        cache: str | os.PathLike[str] | bool | None = None,
        storage_options: Mapping[str, object] | None = None,
        version: int | str | None = None,
    ) -> Dataset[dict[str, Leaf]]:
        """The records of files: a file, a folder, a pattern, a list of either, or URLs of these.

        The format is found from the marks of a folder, the first bytes of a file, or its suffix.
        Records are dicts with the names in the files.  ``docs/formats.md`` has a row per format.

        Args:
            path: patterns may have ``*`` and ``{000..099}``; matches are sorted, with numbers in
                their natural order.  URLs begin with ``s3://``, ``gs://``, ``az://``, ``https://``
                or ``hf://`` (``docs/remote.md``).  Folders of a list are joined in its order.
            split: ``"train"``, ``"train[:80%]"``, ``"train[10:20]+test"``, as in TFDS.
            columns: the leaves to read; others are not touched.
            format: the name of the format, if the files do not show it.
            decode: False gives the bytes of images and of other encoded values.  ``"upright"``
                turns images as their EXIF orientation says; ``"stored"`` keeps the numbers of their
                files, such as indices of palettes and 16 bits.  A dict says it by leaf.
            fill: the values that replace missing ones, by column.
            missing: what becomes of the others, of all columns that have some or by column, in
                tables: ``"error"``; ``"nan"``, floats with NaN (integers of up to 16 bits become
                float32, wider ones float64) and times with NaT; ``"valid"``, zeros (empty text and
                lists, NaT), and a leaf of bools ``{column}_valid`` for each of these columns.  A
                column that is named gets it in any case, so that all files have the same leaves.
            types: dtypes by column, of CSV and JSON: numbers, ``str``, ``"datetime64[D]"``.
                ``"category"``, in all tables, makes int32 codes of text, whose values
                `Dataset.classes` has in sorted order.
            cache: the folder for indexes, copies and downloads; by default ``$LOADERX_CACHE`` or
                ``~/.cache/loaderx``.  With False, only downloads are kept on disk: files behind
                URLs are still fetched into the default folder.
            storage_options: for URLs (``docs/remote.md``): ``{"headers": {...}}`` for HTTP,
                ``{"token": ...}`` for ``hf://``, ``{"key": ..., "secret": ...}`` for S3, ....
            version: the number or the tag of a version, for a Lance dataset; the newest by default.
        """
        from loaderx.sources.decoding import check_decode
        from loaderx.sources.open.opening import open_path  # a dozen formats: slow to import

        found = open_path(
            path,
            split=split,
            columns=columns,
            format=format,
            decode=decode,
            fill=fill,
            missing=missing,
            types=types,
            cache=cache,
            storage_options=storage_options,
            version=version,
        )
        parts = []
        for source, start, stop in found:
            whole = Dataset._of(stages.FromSource(source, check_decode(decode).text))
            parts.append(whole if stop - start == len(source) else whole[start:stop])
        return parts[0] if len(parts) == 1 else Dataset.concatenate(parts)

    @staticmethod
    def from_arrays(*trees: Tree, **leaves: Leaf) -> Dataset[Tree]:
        """Rows of arrays of one leading length: NumPy, memory maps, or lazy ones (h5py, zarr).

        Those of a sparse matrix of scipy are dense.  A group of arrays is a dict of them.
        Named arrays make dicts, ``from_arrays(x, y)`` makes tuples, and one tree is taken as it is.
        A list of more than 8 arrays is refused: most likely each is a record, not a column.

        >>> Dataset.from_arrays(x=np.zeros((3, 2)))[0]
        {'x': array([0., 0.])}
        """
        if trees and leaves:
            raise ArgumentTypeError("from_arrays takes one tree or named arrays, not both.")
        tree = leaves if not trees else trees[0] if len(trees) == 1 else trees
        return Dataset._of(stages.FromSource(ArraySource(tree)))

    @staticmethod
    def from_source(
        source: object,
        *,
        thread_safe: bool | None = None,
        fill: Mapping[str, object] | None = None,
        missing: _Missing | Mapping[str, _Missing] = "error",
        types: Mapping[str, object] | None = None,
    ) -> Dataset[Tree]:
        """A `loaderx.sources.Source`, or anything with ``__len__`` and ``__getitem__``.

        That is a list, a torch or Hugging Face dataset, ...  Where such an object has them,
        ``__getitems__(indices) -> list of records`` and ``gather(indices, lend) -> batch`` are used
        (`Source.gather` says how; ``lend`` may be left out).  If one of these fails on records that
        can be read one by one, a warning says so, once.

        ``thread_safe`` says whether threads may read it at once; by default only lists and arrays,
        and objects with ``thread_safe = True``, are trusted; others are read one at a time, and a
        warning says so if threads wait for it.

        >>> import pyarrow
        >>> table = pyarrow.table({"age": [31, None]})
        >>> Dataset.from_source(table, missing="valid")[1]
        {'age': np.int64(0), 'age_valid': np.False_}

        Args:
            source: the records.
            thread_safe: whether threads may read it at once.
            fill: as in `open`, for tables of pandas, polars, pyarrow and Hugging Face.
            missing: the same.  NaN of pandas is a value where neither names its column.
            types: the same; ``"category"`` is the only type.
        """
        if fill or types or missing != "error":
            from loaderx.sources.formats.arrow.frames import table_source  # late: slow to import

            return Dataset._of(stages.FromSource(table_source(source, fill, missing, types)))
        if isinstance(source, Dataset):
            return source
        if isinstance(source, (list, tuple)) and source and isinstance(source[0], Dataset):
            raise ArgumentTypeError(
                f"a {type(source).__name__} of datasets is not a source of records. Join them with "
                "Dataset.concatenate, Dataset.zip or Dataset.mix."
            )
        refuse_sources(source)
        return Dataset._of(stages.FromSource(adapt(source, thread_safe=thread_safe)))

    @staticmethod
    def from_iterable(iterable: Iterable[Tree] | Callable[..., Iterable[Tree]]) -> Dataset[Tree]:
        """A stream of the records of an iterable, or of a function that makes one.

        One reader reads it in order, in the caller's thread.  A saved position is the iterable's
        own (``state_dict`` and ``load_state_dict``, or ``get_state`` and ``set_state``), or the
        number of records to skip.  A function of ``(shard, count)`` reads one part of several,
        which `batch` with ``lanes`` needs.

        >>> def count():
        ...     yield from range(5)
        >>> [batch.tolist() for batch in Dataset.from_iterable(count).batch(2)]
        [[0, 1], [2, 3], [4]]
        """
        from loaderx.sources.adapt.iterables import IterableSource  # late: most data has an index

        return Dataset._of(stages.FromIterable(IterableSource(iterable)))

    @staticmethod
    def range(start: int, stop: int | None = None, step: int = 1) -> Dataset[Tree]:
        """The numbers of `range`, as int64."""
        return Dataset._of(stages.FromSource(RangeSource(start, stop, step)))

    # Joins ------------------------------------------------------------------------------------

    @joins
    @advised
    def concatenate(datasets: Dataset[T] | Iterable[Dataset[T]], *more: Dataset[T]) -> Dataset[T]:
        """One dataset after the other: ``concatenate(a, b)``, or of a list."""
        return _joined(stages.Concatenated(_nodes("concatenate", _several(datasets, more))))

    @joins
    @advised
    def zip(
        datasets: Dataset[Tree] | Iterable[Dataset[Tree]] | Mapping[str, Dataset[Tree]],
        *more: Dataset[Tree],
    ) -> Dataset[Tree]:
        """Datasets of one length side by side: a tuple, or a dict, of their elements."""
        given = _several(datasets, more)
        if isinstance(given, Mapping):
            tree: Tree = dict.fromkeys(given, 0)
            nodes = _nodes("zip", given.values())
        else:
            nodes = _nodes("zip", given)
            tree = tuple(0 for _ in nodes)
        return _joined(stages.Zipped(nodes, flatten(tree)[1]))

    @joins
    @advised
    def mix(
        datasets: Iterable[Dataset[T]] | Mapping[str, Dataset[T]],
        weights: Weights | Sequence[tuple[int, Weights] | Ramp] | None = None,
        *,
        stop: Literal["first_exhausted", "repeat", "all_exhausted"] = "first_exhausted",
        epochs: int | Mapping[str, int] | None = None,
        at_cap: Literal["error", "redistribute", "stop"] = "error",
        rows: Mapping[str, int] | None = None,
        count: str | None = None,
        part: str | None = None,
    ) -> Dataset[T]:
        """Datasets interleaved in given proportions, exact to less than one record in every prefix.

        Weights count elements: records, or batches of batched datasets.  Documents of unequal
        length are mixed by tokens where each is packed first, and the rows are mixed; or by
        ``count``.

        The mix ends when the first dataset does.  With ``stop="repeat"`` the shorter ones start
        again (as new epochs) until the longest, by its weight, has ended.  With
        ``stop="all_exhausted"`` those that are left go on in their proportions, so that every
        record comes once.  If one of them is a stream, so is the mix.

        >>> a, b = Dataset.range(100), Dataset.range(1000, 1002)
        >>> [int(x) for x in Dataset.mix([a, b], [3, 1]).take(8)]
        [0, 1, 2, 1000, 3, 4, 5, 1001]
        >>> len(Dataset.mix([a, b], [3, 1])), len(Dataset.mix([a, b], [3, 1], stop="all_exhausted"))
        (11, 102)

        Datasets may have names.  Weights can change at given positions of the mix, at once or by a
        `ramp`; a name that is left out has weight 0.  `plan` says what comes of it.  A state that
        was saved before a change is good for any other change from there on.  (So no element
        depends on later weights; where four or more datasets change, one may for a few elements
        be a little more than one behind.)

        >>> mix = Dataset.mix({"web": a, "math": b}, [
        ...     (0, {"web": 1}),
        ...     (4, {"web": 1, "math": 1}),
        ... ], epochs={"math": 2}, at_cap="redistribute")
        >>> [int(x) for x in mix.take(14)]
        [0, 1, 2, 3, 4, 1000, 5, 1001, 6, 1000, 7, 1001, 8, 9]
        >>> mix.plan(14)
        the first 14 elements of the mix
        name  rows   share  epochs  cap_at
        web     10  71.43%   0.100
        math     4  28.57%   2.000      13

        Args:
            datasets: several, in a list or by name.
            weights: a number for each; or entries ``(position, weights)`` and ``ramp(...)``, of
                which the first is for position 0. Equal ones by default.
            stop: what ends the mix.
            epochs: at most so many epochs of a dataset, which starts again until then; one number
                for all, or by name.
            at_cap: what happens where such a dataset would be due again: an error now, or the
                others go on in their proportions, or the mix ends.
            rows: rows in an epoch of a dataset that is a stream and has a limit of epochs, as
                ``DataLoader(dataset).counts().rows`` tells.
            count: the name of a leaf whose elements the weights count. The mean length of each
                dataset must be known from its files.
            part: the name of a leaf to add to every element, with the number of its dataset.
        """
        from loaderx.stages import mix_weights  # late: most chains have no mix

        names = (
            tuple(check_name("the name of a dataset", name) for name in datasets)
            if isinstance(datasets, Mapping)
            else ()
        )
        nodes = _nodes("mix", datasets.values() if isinstance(datasets, Mapping) else datasets)
        check_choice("stop", stop, ("first_exhausted", "repeat", "all_exhausted"))
        check_choice("at_cap", at_cap, ("error", "redistribute", "stop"))
        sizes = () if count is None else _mean_lengths(nodes, names, check_name("count", count))
        tickets, changes = mix_weights.read_weights(
            weights, names or None, len(nodes), sizes or None
        )
        most = mix_weights.read_numbers("epochs", epochs, names or None, len(nodes))
        known = mix_weights.read_numbers("rows", rows, names or None, len(nodes))
        for number, node in enumerate(nodes):
            if stop == "repeat" or (most and most[number] is not None):
                warn_of_changing_parts(node)
        if part is not None:
            nodes = _with_parts(nodes, check_name("part", part))
        mixed = stages.Mixed(
            nodes, tickets, stop, changes, most, at_cap if most else "error", names, sizes, known
        )
        return _joined(mixed)

    def plan(self, n: int) -> MixPlan:
        """What the parts of a mix have given after ``n`` elements, and when their epochs are used.

        It is computed, not counted.  After `batch` it counts steps: ``plan(n)`` is for ``n``
        batches.  Between the mix and here there may be one `batch` and stages that keep every
        element in its place, such as `map`.

        >>> mix = Dataset.mix({"a": Dataset.range(100), "b": Dataset.range(50)}, [3, 1])
        >>> mix.batch(8).plan(5)["b"].rows
        10
        """
        from loaderx.stages.mix_plan import mix_plan  # late: most chains have no mix

        return mix_plan(self._node, check_int("n", n, least=0))

    # Stages on elements -----------------------------------------------------------------------

    @overload
    def map(self, f: Callable[[T], U], *, batched: bool = False) -> Dataset[U]: ...
    @overload
    def map(self, f: object, *, batched: bool = False) -> Dataset[Tree]: ...
    @advised
    def map(self, f: object, *, batched: bool = False) -> Dataset[Tree]:
        """``f(element)`` for every element.

        Before `batch`, ``batched=True`` hands ``f`` stacked runs of records instead; it
        must work row by row, and so must functions after `batch`.  Where rows differ in length, as
        those of a tokenizer do, ``f`` returns lists of rows in place of arrays.
        """
        function = resolve(f, "map")
        return self._transform("map", Map(function), function.name, batched)

    def map_with_index(self, f: object) -> Dataset[Tree]:
        """``f(index, element)``, with the element's position in this dataset."""
        function = resolve(f, "map_with_index")
        if self._node.is_stream and not self._node.batched:
            raise ChainError(
                "map_with_index on the records of a stream: their numbers are not known. Put it "
                "before the stage that makes the stream (filter, flat_map, pack, ...)."
            )
        return self._transform("map_with_index", MapWithIndex(function), function.name)

    @advised
    def random_map(
        self,
        f: object,
        *,
        seed: int | None = None,
        batched: bool = False,
        seed_globals: bool = False,
    ) -> Dataset[Tree]:
        """``f(element, rng)``, with random numbers that belong to the element.

        For a record, ``rng`` is a `numpy.random.Generator` of its own.  For batches (and with
        ``batched=True``) it is a `BatchGenerator`, of which every call gives one draw per record.

        ``seed_globals=True`` is for older functions ``f(record)`` that draw from ``np.random``,
        ``random`` or torch's CPU generator: these are seeded for each record, and put back.

        >>> ds = Dataset.range(4).batch(2).random_map(lambda batch, rng: rng.integers(0, 9, size=3))
        >>> [draws.shape for draws in ds]
        [(2, 3), (2, 3)]
        """
        if check_bool("seed_globals", seed_globals):
            return self._seeded_map(f, seed, batched)
        function = resolve(f, "random_map")
        return self._transform("random_map", RandomMap(function), function.name, batched, seed)

    def _seeded_map(self, f: object, seed: int | None, batched: bool) -> Dataset[Tree]:
        if batched:
            raise ArgumentError(
                "`seed_globals` and `batched` cannot be used together: the draws belong to one "
                "record."
            )
        if self._node.batched:
            raise ChainError(
                "random_map with seed_globals=True after batch: the draws belong to one record. "
                "Put it before .batch(...), or write random_map(f) with f(batch, rng)."
            )
        function = resolve(f, "map")
        return self._transform("random_map", SeededMap(function), function.name, seed=seed)

    @advised
    def filter(self, f: object, *, batched: bool = False) -> Dataset[T]:
        """The records for which ``f(record)`` is true, in their order.  Makes a stream.

        With ``batched=True``, ``f`` gets stacked runs of records and returns a bool for each,
        which is much faster.

        >>> ds = Dataset.range(10).filter(lambda x: x % 3 == 0, batched=True).batch(2)
        >>> [batch.tolist() for batch in ds]
        [[0, 3], [6, 9]]
        """
        return Dataset._of(
            stages.Filtered(self._node, resolve(f, "filter"), check_bool("batched", batched))
        )

    def flat_map(self, f: object, *, window: int | None = None) -> Dataset[Tree]:
        """All records of ``f(record)``, a list of any number of them.  Makes a stream.

        ``window`` records are read together, at most 64 by default, and all of their results are
        made before the first is used.  If a record gives thousands, as a file may, write 1.

        >>> list(Dataset.from_source(["a b", "", "c"]).flat_map(str.split))
        ['a', 'b', 'c']
        """
        span = None if window is None else check_window(window)
        return Dataset._of(stages.FlatMapped(self._node, resolve(f, "flat_map"), span))

    def random_keys(self, name: str = "key", *, seed: int | None = None) -> Dataset[Tree]:
        """Adds key data, uint32[2] per record, for `jax.random.wrap_key_data` on the device."""
        check_name("name", name)
        return self._transform("random_keys", RandomKeys(name), name, seed=seed)

    def _transform(
        self,
        kind: str,
        transform: Transform,
        name: str,
        batched: bool = False,
        seed: int | None = None,
    ) -> Dataset[Tree]:
        if batched and self._node.batched:
            raise ChainError(
                f"{kind}(batched=True) after batch: the elements are batches already. "
                "Leave `batched` out."
            )
        own = None if seed is None else check_seed(seed)
        return Dataset._of(
            stages.Transformed(
                self._node,
                transform,
                kind,
                name,
                stacked=check_bool("batched", batched),
                own_seed=own,
            )
        )

    def apply(self, transforms: object) -> Dataset[Tree]:
        """Several stages at once: functions (mapped), and Grain-style transform objects.

        An object with ``random_map``, ``map_with_index``, ``flat_map``, ``filter`` or ``map``
        becomes that stage; one with a ``batch_size`` becomes `batch`.  A
        `loaderx.stages.WindowStage` is a stage of your own.
        """
        out: Dataset[Tree] = self
        for transform in transforms if isinstance(transforms, (list, tuple)) else [transforms]:
            out = out._apply_one(transform)
        return out

    def _apply_one(self, transform: object) -> Dataset[Tree]:
        from loaderx.stages.window_map import is_window_stage, map_windows  # late: few have any

        if is_window_stage(transform):
            return Dataset._of(map_windows(self._node, transform))
        for kind in ("random_map", "map_with_index", "flat_map", "filter", "map"):
            if callable(getattr(transform, kind, None)):
                return cast("Dataset[Tree]", getattr(self, kind)(transform))
        size = getattr(transform, "batch_size", None)
        if size is not None:
            drop = bool(getattr(transform, "drop_remainder", False))
            return self.batch(size, drop_remainder=drop)
        if not callable(transform):
            raise ArgumentTypeError(
                "`apply` takes functions and objects with map, random_map, map_with_index, filter, "
                "flat_map or batch_size, and stages (loaderx.stages.WindowStage); got "
                f"{transform!r} ({type(transform).__name__})."
            )
        return self.map(transform)

    # Order ------------------------------------------------------------------------------------

    @no_buffer
    @advised
    def shuffle(
        self,
        seed: int | None = None,
        *,
        window: int | None = None,
        block: int | Literal["source"] | None = None,
    ) -> Dataset[T]:
        """A new random order in every epoch.  Takes no memory that grows with the length.

        With ``window``, the order changes only within each run of so many consecutive records;
        a stream can be shuffled in no other way.

        With ``block``, blocks of so many consecutive records come in random order, and the records
        of a block in their own: for data that is best read in runs.  ``window`` then also shuffles
        the records within windows of whole blocks, so it must be a multiple of ``block``.
        ``block="source"`` takes the blocks that the source is stored in: row groups,
        shards, chunks.

        >>> [int(x) for x in Dataset.range(5).shuffle(seed=0).repeat(2)]
        [3, 2, 4, 0, 1, 4, 1, 2, 0, 3]
        >>> [int(x) for x in Dataset.range(10).shuffle(seed=3, block=2)]
        [6, 7, 0, 1, 4, 5, 8, 9, 2, 3]
        >>> [int(x) for x in Dataset.range(10).shuffle(seed=3, block=2, window=4)]
        [0, 1, 7, 6, 9, 8, 4, 5, 3, 2]
        """
        own = None if seed is None else check_seed(seed)
        span = None if window is None else check_window(window)
        if block is not None:
            size = check_block(block)
            return Dataset._of(stages.BlockShuffled(self._node, size, span, own))
        if span is None:
            return Dataset._of(stages.Shuffled(self._node, own))
        return Dataset._of(stages.WindowShuffled(self._node, span, own))

    def sample(self, weights: Leaf, n: int | None = None, *, seed: int | None = None) -> Dataset[T]:
        """``n`` elements drawn by weight, with replacement; new draws in every epoch.

        ``weights`` has a number for each element of this dataset: they need not add up to 1, and an
        element of weight 0 is never drawn.  ``n`` is the length of an epoch, by default that of
        this dataset.  A record that is drawn again has random numbers of its own.

        To balance classes, divide the weight of each class evenly among its records:

        >>> labels = np.array([0, 0, 0, 0, 0, 0, 0, 1])
        >>> ds = Dataset.from_arrays(label=labels).sample(1 / np.bincount(labels)[labels], 1000)
        >>> bool(450 < sum(record["label"] for record in ds) < 550)
        True
        """
        from loaderx.stages.sample import check_drawable, sample_weights  # late: most draw none

        own = None if seed is None else check_seed(seed)
        check_drawable(self._node)
        length = len(self)
        count = length if n is None else check_int("n", n, least=1)
        return Dataset._of(stages.Sampled(self._node, sample_weights(weights, length), count, own))

    def seed(self, n: int) -> Dataset[T]:
        """The seed of every random stage of this chain that has none of its own (0 by default)."""
        return Dataset._of(stages.Seeded(self._node, check_seed(n)))

    @advised
    def repeat(self, num_epochs: int | None = None) -> Dataset[T]:
        """``num_epochs`` times, or endlessly.  Random stages differ in every epoch."""
        epochs = None if num_epochs is None else check_int("num_epochs", num_epochs)
        if epochs is not None and epochs < 1:
            raise ArgumentError(
                f"`num_epochs` must be at least 1, got {epochs}. Leave it out to repeat endlessly."
            )
        if epochs != 1:
            warn_of_changing_parts(self._node)
        return Dataset._of(stages.Repeated(self._node, epochs))

    @advised
    def take(self, n: int) -> Dataset[T]:
        """The first ``n`` elements."""
        n = check_int("n", n, least=1)
        length = self._node.length
        return self._slice(0, 1, n if length is None else min(n, length))

    @advised
    def skip(self, n: int) -> Dataset[T]:
        """All but the first ``n`` elements."""
        n = check_int("n", n, least=0)
        length = self._node.length
        if length is not None and n >= length:
            raise ArgumentError(f"skip({n}) leaves nothing of {length} elements.")
        return self._slice(n, 1, None if length is None else length - n)

    def skip_steps(self, ranges: Iterable[tuple[int, int]]) -> Dataset[T]:
        """Leaves out some steps of a run; all others keep their numbers.

        For batches that made a loss jump: go back to a checkpoint before them, and go on without
        them.  The numbers are those of ``iterator.step``, which counts skipped steps too; so they
        mean the same batches for ever, and states from before are good.  In a chain, the records of
        skipped steps are not read; a stream must read them.

        It stands last; only `take`, which counts the batches that come, and functions of a batch
        may follow.

        >>> from loaderx import DataLoader
        >>> ds = Dataset.range(12).batch(2).skip_steps([(1, 3), (4, 5)])
        >>> [batch.tolist() for batch in ds]
        [[0, 1], [6, 7], [10, 11]]
        >>> iterator = iter(DataLoader(ds))
        >>> next(iterator).tolist(), iterator.step
        ([0, 1], 3)

        Args:
            ranges: pairs ``(first, stop)``; the step ``stop`` comes again.
        """
        from loaderx.stages.skip_steps import skip_steps  # late: most runs skip none

        node = skip_steps(self._node, ranges)
        return self if node is self._node else Dataset._of(node)

    def _slice(self, start: int, step: int, count: int | None) -> Dataset[T]:
        return Dataset._of(stages.Sliced(self._node, start, step, count))

    @advised
    def split(
        self,
        *sizes: float,
        shuffle: bool = True,
        seed: int | None = None,
        stratify: str | Leaf | None = None,
        groups: str | Leaf | None = None,
    ) -> tuple[Dataset[T], ...]:
        """Disjoint datasets that hold these shares of this one, and together all of it.

        Which record goes where is drawn once (or, without ``shuffle``, follows the order), so that
        training and validation data never mix, in any epoch.

        >>> train, test = Dataset.range(10).split(0.8, 0.2)
        >>> len(train), len(test)
        (8, 2)
        >>> labels = np.array([0, 0, 0, 0, 0, 0, 0, 0, 1, 1])
        >>> train, test = Dataset.from_arrays(label=labels).split(5, 5, stratify="label")
        >>> sorted(int(record["label"]) for record in test)
        [0, 0, 0, 0, 1]

        Args:
            sizes: fractions that add up to 1, or whole numbers that add up to the length.
            shuffle: False puts the first elements into the first part, and so on.
            seed: of the draw.
            stratify: the name of a leaf, or an array with a label for each element: every label
                has its share of each part, as in scikit-learn.
            groups: likewise, for groups that must stay together. Each is in one part only, and the
                sizes are as near as that allows: the largest groups are dealt out first.
        """
        from loaderx.plans.split_parts import split_parts  # late: many programs split nothing

        parts = split_parts(self._node, sizes, shuffle, seed, stratify, groups)
        return tuple(map(Dataset._of, parts))

    @advised
    def split_indices(
        self,
        *sizes: float,
        shuffle: bool = True,
        seed: int | None = None,
        stratify: str | Leaf | None = None,
        groups: str | Leaf | None = None,
    ) -> tuple[Array, ...]:
        """The indices of the elements in each part of `split`, with the same arguments.

        ``ds[indices]`` has the elements of the part in their order.  To join some of the parts, as
        for folds, join their indices.

        >>> train, test = Dataset.range(5).split_indices(0.6, 0.4, shuffle=False)
        >>> train, test
        (array([0, 1, 2]), array([3, 4]))
        """
        from loaderx.plans.split_parts import indices_of, split_parts

        parts = split_parts(self._node, sizes, shuffle, seed, stratify, groups)
        return tuple(map(indices_of, parts))

    @advised
    def window(
        self, n: int, *, stride: int = 1, gap: int = 0, groups: str | Leaf | None = None
    ) -> Dataset[Tree]:
        """``n`` records after one another as one, for time series: leaves get a first axis of n.

        A batch of windows is gathered from the records at once, so windows take no memory.  Shuffle
        and batch them as other records.  Split before: windows that overlap share records.

        >>> ds = Dataset.range(6).window(3, stride=2)
        >>> [window.tolist() for window in ds]
        [[0, 1, 2], [2, 3, 4]]
        >>> ds = Dataset.from_arrays(x=np.arange(6), of=list("aabbbb")).window(2, groups="of")
        >>> [window["x"].tolist() for window in ds]
        [[0, 1], [2, 3], [3, 4], [4, 5]]

        Args:
            n: records in a window; windows that would go beyond the end are left out.
            stride: records from the beginning of a window to that of the next.
            gap: records left out between two of a window, as for hours of a series of minutes,
                ``gap=59``. (The ``sampling_rate`` of Keras is ``gap + 1``.)
            groups: the name of a leaf, or an array with a label for each record, that says which
                series it is of: no window holds two of them. Records of a series stand together.
        """
        from loaderx.stages.window import Windowed, within_series  # late: for time series only

        n, stride = check_int("n", n, least=1), check_int("stride", stride, least=1)
        gap = check_int("gap", gap, least=0)
        if groups is None:
            return Dataset._of(Windowed(self._node, n, stride, gap))
        from loaderx.plans.leaf_values import labels_of

        windows, labels = Windowed(self._node, n, 1, gap), labels_of(self._node, groups, "groups")
        return Dataset._of(windows)[within_series(labels, windows, stride)]

    # Batches ----------------------------------------------------------------------------------

    @advised
    def batch(
        self,
        batch_size: int,
        *,
        drop_remainder: bool = False,
        pad_remainder: bool = False,
        mask_key: str = "mask",
        pad_to: Mapping[str, int] | None = None,
        pad_value: Value = 0,
        collate_fn: Callable[[list[T]], Tree] | None = None,
        lanes: int = 1,
    ) -> Dataset[Tree]:
        """Runs of so many records, stacked leaf by leaf: the global batch, over all hosts.

        The last batch may be short; ``drop_remainder`` leaves it out, ``pad_remainder`` fills it up
        and adds a bool leaf ``mask_key`` to every batch.  ``pad_to={"tokens": 512}`` pads that leaf
        of every record to one length (with ``pad_value``, one for all or a dict) and adds
        ``tokens_length``.

        A stream on several hosts is cut into ``lanes``, each with its own share of the data;
        every batch takes as many rows from each.  The number of hosts must divide the lanes, which
        stay the same as long as a run is continued.  Each lane holds records in memory.

        >>> ds = Dataset.from_source([{"t": [1]}, {"t": [2, 3]}]).batch(2, pad_to={"t": 3})
        >>> ds[0]["t"].tolist(), ds[0]["t_length"].tolist()
        ([[1, 0, 0], [2, 3, 0]], [1, 2])
        """
        if isinstance(batch_size, int) and batch_size == -1:
            raise ArgumentError(
                "`batch_size` must be at least 1, got -1. For one batch of all records write "
                ".batch(len(ds))."
            )
        size = check_int("batch_size", batch_size, least=1)
        drop_remainder = check_bool("drop_remainder", drop_remainder)
        pad_remainder = check_bool("pad_remainder", pad_remainder)
        if drop_remainder and pad_remainder:
            raise ArgumentError("`drop_remainder` and `pad_remainder` cannot be used together.")
        if collate_fn is not None and not callable(collate_fn):
            raise ArgumentTypeError(f"`collate_fn` must be a function, got {collate_fn!r}.")
        if collate_fn is not None and pad_to:
            raise ArgumentError("`pad_to` cannot be used with `collate_fn`: pad in that function.")
        padding = check_padding(pad_to, pad_value)
        lanes = check_int("lanes", lanes, least=1)
        if self._node.is_stream and not self._node.batched:
            check_lanes(self._node, lanes)
        return Dataset._of(
            stages.Batched(
                self._node,
                size,
                drop_remainder,
                pad_remainder,
                check_name("mask_key", mask_key),
                padding,
                collate_fn,
                lanes,
            )
        )

    def pack(
        self,
        lengths: Mapping[str, int | str],
        *,
        strategy: Literal["best_fit", "first_fit", "concat"] = "best_fit",
        window: int = 2000,
        overflow: Literal["error", "truncate", "split", "drop"] = "error",
        pad_value: Value = 0,
        max_segments: int | None = None,
        segment_ids: str | None = "{}_segment_ids",
        positions: str | None = "{}_positions",
        bos: Value = None,
        whole_documents: bool = False,
        eos: Value = None,
        continue_positions: bool = False,
        balance: Literal["squares"] | Callable[..., object] | None = None,
        balance_rows: int = 8,
    ) -> Dataset[Tree]:
        """Several records end to end in each row of a fixed length.  Makes a stream.

        ``lengths={"tokens": 2048}`` names the leaves to pack, and the length of their rows.  Beside
        each stand ``tokens_segment_ids`` (1, 2, ... for the records of a row, 0 for padding) and
        ``tokens_positions`` (from 0 in every record).  Other leaves are kept once per segment, up
        to ``max_segments``.  Records of ``window`` consecutive places are packed together.
        A leaf with the name of another one, ``{"tokens": 2048, "loss_mask": "tokens"}``, is packed
        alike: it has the same length in every record, and shares ids and positions.

        ``"best_fit"`` takes the longest records first and puts each into the fullest row that has
        room; ``"first_fit"`` keeps their order; ``"concat"`` lays all end to end and cuts anywhere,
        or with ``whole_documents`` only between records.  ``overflow`` says what becomes of a
        record that is longer than the row; ``bos`` is put at the head of every row, ``eos`` after
        every record.  With ``continue_positions``, those of a record that was cut go on in its next
        piece.

        ``balance="squares"`` orders the rows of a window so that the devices of a step, each with
        ``balance_rows`` rows, have nearly the same sum of squared segment lengths, the cost of
        attention.  A function gets the lengths of all segments as an array, and returns the cost
        of each.

        >>> ds = Dataset.from_source([{"t": [1, 2, 3]}, {"t": [4, 5]}, {"t": [6]}])
        >>> (row,) = ds.pack({"t": 4}).batch(2)
        >>> row["t"].tolist(), row["t_segment_ids"].tolist()
        ([[1, 2, 3, 6], [4, 5, 0, 0]], [[1, 1, 1, 2], [1, 1, 0, 0]])
        """
        from loaderx.stages.pack import check_packing  # late: most chains do not pack

        options = check_packing(
            lengths, strategy, window, overflow, pad_value, max_segments, segment_ids, positions,
            bos, whole_documents, eos, continue_positions, balance, balance_rows,
        )  # fmt: skip
        return Dataset._of(stages.PackedRecords(self._node, options))

    def bucket(
        self,
        boundaries: Sequence[int],
        batch_sizes: int | Sequence[int],
        *,
        leaves: str | Sequence[str] | None = None,
        window: int = 2000,
        drop_remainder: bool = False,
        pad_value: Value = 0,
        mask_key: str = "mask",
    ) -> Dataset[Tree]:
        """Batches of records of similar length, in a few fixed shapes.  Makes a stream.

        A record goes into the first boundary that it does not exceed; batches of that bucket are
        padded to the boundary and have its batch size.  ``leaves`` names the leaves with that
        length (all that have an axis, by default); beside each stands ``<leaf>_length``.

        Records of ``window`` consecutive places are sorted together.  What is left over goes on to
        the next larger bucket; the last batch of a window is filled up, and a bool leaf
        ``mask_key`` tells which rows are real.  ``drop_remainder`` leaves it out, and the mask.

        >>> ds = Dataset.from_source([{"t": [i] * i} for i in (1, 5, 2, 6, 2)])
        >>> [batch["t"].shape for batch in ds.bucket([2, 8], [3, 2])]
        [(3, 2), (2, 8)]
        """
        from loaderx.stages.bucket import check_bucketing  # late: most have no buckets

        options = check_bucketing(
            boundaries, batch_sizes, leaves, window, drop_remainder, pad_value, mask_key
        )
        return Dataset._of(stages.Bucketed(self._node, options))

    @advised
    def unbatch(self) -> Dataset[Tree]:
        """The rows of batches as records again (padding left out)."""
        return Dataset._of(stages.Unbatched(self._node))

    def on_error(self, policy: Policy, *, limit: int | None = None) -> Dataset[T]:
        """What to do when reading a record, or a function of one record, fails before this stage.

        ``"raise"`` is the default.  ``"replace"`` takes another record of the same dataset instead,
        always the same one for the same place; in a stream the record is left out.  ``"skip"``
        leaves it out in any case, and so makes a stream.  A function gets the `RecordError` and
        returns ``"raise"`` or ``"replace"``; it is called where the record is read, which may be
        another process.  Failures of batch functions always raise.

        ``DataLoader.stats().failures`` lists the records that failed, and why.  With ``limit``, a
        loader raises when more than that many different records have failed.

        >>> ds = Dataset.from_source(["1", "2", "x", "4"]).map(int).on_error("skip")
        >>> list(ds)
        [1, 2, 4]
        """
        if limit is not None:
            limit = check_int("limit", limit, least=1)
        if not callable(policy):
            check_choice("policy", policy, ("raise", "replace", "skip"))
            if policy == "raise":
                if limit is not None:
                    raise ArgumentError("`limit` needs on_error('replace') or on_error('skip').")
                return self
            if policy == "skip" and not self._node.is_stream:
                return Dataset._of(stages.Skipping(self._node, policy, limit))
        return Dataset._of(stages.Guarded(self._node, policy, limit))

    def without(
        self,
        ids: Leaf,
        *,
        fill: Literal["replace", "mask", "empty"] = "replace",
        mask_key: str = "mask",
    ) -> Dataset[Tree]:
        """Removes records; all others keep their places, bit for bit.

        Removed records are never read again.  States from before are good, and a warning says how
        many records were removed since, and how many of them had come.  Append later numbers to the
        list: that is how a state knows it again.  It stands next to the source, where the number of
        a record never changes.

        >>> ds = Dataset.range(6).without([1, 4])
        >>> [int(x) for x in ds]
        [0, 2, 2, 3, 0, 5]

        Args:
            ids: numbers of records: an array, a list, or the path of a text file with one a line.
            fill: ``"replace"`` puts another record of the dataset into each place, another one in
                every epoch; ``"mask"`` zeros, and adds a bool leaf ``mask_key`` to every record;
                ``"empty"`` nothing along the first axis of each leaf: `pack` leaves such texts out.
            mask_key: the name of that leaf.
        """
        from loaderx.stages.without import without  # late: most chains remove nothing

        check_choice("fill", fill, ("replace", "mask", "empty"))
        node = without(self._node, ids, fill, check_name("mask_key", mask_key))
        return self if node is self._node else Dataset._of(node)

    # Saving -----------------------------------------------------------------------------------

    @advised
    def save(
        self,
        folder: str | os.PathLike[str],
        *,
        part_bytes: int = 1 << 28,
        images: Sequence[str] = (),
        engine: object = "auto",
        num_workers: int | None = None,
        shard: tuple[int, int] | None = None,
    ) -> None:
        """Writes all records into a folder of plain ``.npy`` files, which `open` reads.

        Calling it again resumes an interrupted save; finished parts are kept.  If the folder holds
        this dataset already, nothing is done; a folder with another dataset, or with other files,
        is refused.  Random stages are saved with their draws of the first epoch.

        Leaves may be arrays (of various lengths along their first axis), numbers, text, bytes,
        None, and lists or dicts of them.  Python numbers are saved as in batches (int32, float32).

        Args:
            folder: new, empty, or left by an interrupted save; or the URL of one in a bucket
                (``s3://``, ``gs://``, ``az://``, and schemes of fsspec).
            part_bytes: the approximate size of a part.  Workers write whole parts if there are
                enough of them for all; else they share the records of each.
            images: leaves that hold the bytes of image files; `open` will decode them.
            engine, num_workers: as in `DataLoader`.  Workers on other machines write the parts
                themselves, so they must see the folder under the same path, or reach the bucket.
            shard: ``(index, count)`` for ``count`` processes that save one dataset into one folder,
                on any machines that share it; each calls this with its own index.  The last to end
                completes the folder, which then has the files that a single save writes.

        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> Dataset.range(5).map(lambda i: {"x": i, "name": f"record {i}"}).save(folder)
        >>> Dataset.open(folder)[3]["name"]
        'record 3'
        """
        assert _run_save is not None
        try:
            _run_save(self, SaveArguments(folder, part_bytes, images, engine, num_workers, shard))
        except LoaderxError as error:
            hide_own_frames(error)
            raise error

    @advised
    def cache(self, path: str | os.PathLike[str] | None = None) -> Dataset[T]:
        """Keeps the records of the stages below: each is made once, and read from then on.

        A record is kept when it is first read.  Without ``path`` the records are in memory, which
        all workers of a loader share.  With ``path`` they are in that folder.  Several processes
        may fill it at once.  An interrupted run is resumed by the next one.  Once it has all
        records, the folder is what `save` writes, and `open` reads it too.

        The stream is the same as without it.  Random stages and `repeat` belong after it.

        >>> made = []
        >>> ds = Dataset.range(100).map(lambda i: made.append(i) or {"x": i}).cache().batch(50)
        >>> for epoch in range(3):
        ...     total = sum(int(batch["x"].sum()) for batch in ds)
        >>> total, len(set(map(int, made)))
        (4950, 100)
        """
        from loaderx.reading.row_store import RowStore
        from loaderx.stages.cache import check_cacheable  # late: most chains keep nothing

        check_cacheable(self._node)
        if path is None:
            return Dataset._of(stages.Cached(self._node, RowStore(len(self))))
        assert _run_fill is not None
        try:
            return Dataset._of(stages.Cached(self._node, _run_fill(self, path)))
        except LoaderxError as error:
            hide_own_frames(error)
            raise error

    # Reading ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        if self._node.is_stream:
            raise ArgumentTypeError(
                "a stream has no length: the number of its elements is known when it ends."
            )
        if self._node.length is None:
            raise ArgumentTypeError("an endless dataset has no length; .take(n) gives it one.")
        return self._node.length

    def __bool__(self) -> bool:
        return True  # else `if dataset` would ask for its length, which streams do not have

    @overload
    def __getitem__(self, index: slice | Sequence[int] | Sequence[bool] | Array) -> Dataset[T]: ...
    @overload
    def __getitem__(self, index: SupportsIndex) -> T: ...
    @overload
    def __getitem__(self, index: HasArray) -> Dataset[T]: ...
    def __getitem__(self, index: object) -> Tree:
        """An element for an int; a dataset for a slice, for indices, or for a bool mask.

        These may be a list, an array, or a column or index of pandas or polars, whose values count:
        they are positions, from 0 on.
        """
        if isinstance(index, slice):
            return self._by_slice(index)
        if self._node.is_stream and not isinstance(index, str):
            raise ChainError(
                "a stream has no elements by number: iterate over it, or choose records before "
                "the stage that makes it a stream (filter, flat_map, pack, ...)."
            )
        is_listed = isinstance(index, (list, tuple, range)) or hasattr(index, "__array__")
        if is_listed and np.ndim(cast("Leaf", index)) > 0:
            table = index_table(np.asarray(index), self._node.length)
            return Dataset._of(stages.Picked(self._node, table))
        if isinstance(index, str):
            raise ArgumentTypeError(
                f"a dataset is indexed by number, got {index!r}. For one leaf of each record write "
                f".map(lambda r: r[{index!r}])."
            )
        position = check_int("index", index)
        length = self._node.length
        if length is not None and not -length <= position < length:
            raise PositionError(f"index {position} is out of range for {length} elements.")
        if position >= self._node.limit:
            raise PositionError(
                f"index {position} of an endless dataset: the last is {self._node.limit - 1}, "
                "since positions of records are below 2**62."
            )
        if position < 0:
            if length is None:
                raise PositionError("an endless dataset has no last element to count from.")
            position += length
        try:
            return self._compiled().read_alone(position, Pool().lend)
        except LoaderxError as error:
            hide_own_frames(error)
            raise error

    def _compiled(self) -> IndexPlan:
        """The plan for single elements, compiled once: each joined dataset adds to the time."""
        plan = getattr(self, "_plan", None)
        if plan is None:
            plan = IndexPlan(self._node)
            object.__setattr__(self, "_plan", plan)
        return plan

    @advised
    def records(self, n: int) -> Records:
        """The records that element ``n`` is made of: the batch, after `batch`.

        It follows from the description, and nothing is read, unless the dataset is a stream: then
        it is read up to there.  A record that `on_error` replaced is named, not the one that took
        its place.

        >>> found = Dataset.range(100).shuffle(seed=0).batch(4).repeat().records(81_234)
        >>> found.index.tolist(), found.epoch.tolist()
        ([20, 52, 84, 86], [3249, 3249, 3249, 3249])

        Args:
            n: the number of the element, from 0 on.
        """
        return self._provenance().records(check_int("n", n, least=0))

    @advised
    def steps_of(
        self,
        index: int | Sequence[int] | Array,
        *,
        part: str | None = None,
        until: int | None = None,
    ) -> Array:
        """The numbers of all elements that have a record, ascending: the inverse of `records`.

        >>> ds = Dataset.range(100).shuffle(seed=0).batch(4).repeat()
        >>> ds.steps_of(12, until=100)
        array([13, 38, 60, 89])
        >>> all(12 in ds.records(n).index for n in ds.steps_of(12, until=100))
        True

        Args:
            index: the number of a record in its source, as `Records.index` has it, or several:
                then elements that have any of them.
            part: the name of the source, as `Records.part` has it, if there are several.
            until: looks at elements before this one; by default at all.
        """
        return self._provenance().steps_of(index, part, until)

    def _provenance(self) -> Provenance:
        if self._node.is_stream:
            from loaderx.plans.stream_records import of_dataset  # late: few programs ask for it

            return of_dataset(self._node)
        from loaderx.plans.records import IndexProvenance  # late, as above

        return IndexProvenance(self._node, self._compiled(), self._node.length)

    def _by_slice(self, index: slice) -> Dataset[T]:
        length = self._node.length
        if length is None:
            start = check_int("start", 0 if index.start is None else index.start, least=0)
            step = check_int("step", 1 if index.step is None else index.step, least=1)
            stop = index.stop
            if step > 1 and self._node.is_stream:
                raise ChainError(f"the slice {slice_text(index)} of a stream: its step must be 1.")
            count = None if stop is None else -(-(check_int("stop", stop, least=0) - start) // step)
        else:
            start, stop, step = index.indices(length)
            count = len(range(start, stop, step))
        if count is not None and count <= 0:
            raise ArgumentError(f"the slice {slice_text(index)} leaves nothing of the dataset.")
        return self._slice(start, step, count)

    def __iter__(self) -> Iterator[T]:
        try:
            yield from self._elements()
        except LoaderxError as error:
            hide_own_frames(error)
            raise error

    def _elements(self) -> Iterator[T]:
        if self._node.is_stream:
            from loaderx.plans.stream_plan import iterate  # late: most chains are not streams

            yield from iterate(self._node)
            return
        plan, lend = IndexPlan(self._node), Pool().lend
        first, stop = 0, self._node.limit
        while plan.reads_each and first < stop:
            first = yield from plan.stream_records(first, min(stop, first + _AT_ONCE))
        for step in range(first, stop):
            element = plan.read_fast(step, lend) if plan.is_plain else None
            yield plan.read(step, ReadContext(lend)) if element is None else element
            del element  # else it would be held until the next one is made

    @property
    def element_spec(self) -> Tree:
        """Shape and dtype of every leaf of an element.

        Reads the first element, unless the spec is known without it (arrays, and no `map`), and up
        to 15 more if that has an empty list.
        """
        if self._node.spec is not None:
            return self._node.spec
        one_by_one = map(self.__getitem__, range(max(1, self._node.limit)))
        elements = iter(self) if self._node.is_stream else one_by_one
        try:
            spec = spec_of_first(itertools.islice(elements, _LOOKED_AT))
        except StopIteration:
            raise PositionError("the stream is empty: there is no element to look at.") from None
        counts = [count for node in self._node.batch_stages() for count in node.row_counts(False)]
        if not any(count.is_rest for count in counts):
            return spec
        return map_leaves(lambda leaf: ArraySpec((None, *leaf.shape[1:]), leaf.dtype), spec)

    @property
    def classes(self) -> dict[str, tuple[str, ...]]:
        """The names of the classes that the numbers of a leaf stand for, if the files have them.

        A leaf whose names differ between joined datasets is left out.
        """
        found: dict[str, tuple[str, ...]] = {}
        differ = set()
        for node in self._node.below():
            for _, part in node.user_objects:
                for leaf, names in part.classes.items() if isinstance(part, Source) else ():
                    if found.setdefault(leaf, names) != names:
                        differ.add(leaf)
        return {leaf: names for leaf, names in found.items() if leaf not in differ}

    def head(self, n: int = 5) -> list[T]:
        """The first ``n`` elements, or all if there are fewer: records, or batches after `batch`.

        >>> Dataset.from_arrays(x=np.arange(6)).map(lambda record: int(record["x"])).head(3)
        [0, 1, 2]

        Args:
            n: how many.
        """
        return list(itertools.islice(self, check_int("n", n, least=1)))

    def show(self, n: int = 36) -> Shown:
        """The first ``n`` records, or rows of the first batch, as `loaderx.show` shows them.

        >>> Dataset.from_arrays(x=np.arange(6.0), name=np.array(list("abcdef"))).show(3)
        x     float64[3]  0, 1, 2
        name  object[3]   a, b, c

        Args:
            n: how many rows.
        """
        from loaderx.display.show import show, show_records  # late: few programs look at pictures

        n = check_int("n", n, least=1)
        elements = self.head(1 if self._node.batched else n)
        if not elements:
            raise ArgumentError("there is nothing to show: the stream is empty.")
        if self._node.batched:
            return show(elements[0], classes=self.classes, most=n)
        return show_records(elements, self.classes, n)

    def _repr_html_(self) -> str:
        from loaderx.chain.html import chain_page  # for notebooks only

        return chain_page(self._node, lambda: self.show(_IN_NOTEBOOK).html())

    def __repr__(self) -> str:
        return describe_chain(self._node)


class SaveArguments(Frozen):
    """The arguments of `Dataset.save`, as they were given."""

    folder: str | os.PathLike[str]
    part_bytes: int
    images: Sequence[str]
    engine: object
    num_workers: int | None
    shard: tuple[int, int] | None


RunSave: TypeAlias = Callable[[Dataset[Tree], SaveArguments], None]
RunFill: TypeAlias = Callable[[Dataset[Tree], object], "Kept"]

_run_save: RunSave | None = None
_run_fill: RunFill | None = None


def save_with(save: RunSave, fill: RunFill) -> None:
    """Sets the functions behind `save` and `cache(path)`: they need engines, a layer above."""
    global _run_save, _run_fill
    _run_save, _run_fill = save, fill


def _open_arrays(path: str | os.PathLike[str], keys: Sequence[str] | None) -> dict[str, Leaf]:
    from loaderx.sources.cache.folder import cache_folder
    from loaderx.sources.files.arrays import (
        open_arrays,  # late: zipfile and pathlib are slow to import
    )

    return open_arrays(path, keys, cache_folder(None).files)


def _several(datasets: object, more: tuple[object, ...]) -> object:
    """Datasets as they were given: one after the other, or all in one list."""
    return (datasets, *more) if more else datasets


def _joined(join: Joined) -> Dataset[Tree]:
    join.warn_of_two_orders()
    return Dataset._of(join)


def _mean_lengths(nodes: Sequence[Node], names: Sequence[str], leaf: str) -> tuple[float, ...]:
    from loaderx.stages.mix_plan import mean_length

    named = names or [str(number) for number in range(len(nodes))]
    return tuple(mean_length(node, leaf, name) for node, name in zip(nodes, named, strict=True))


def _with_parts(nodes: Sequence[Node], leaf: str) -> tuple[Node, ...]:
    from loaderx.stages.mix_plan import NamePart

    found = []
    for number, node in enumerate(nodes):
        stacked = node.batched or node.spec is not None
        name = NamePart(leaf, number, stacked=stacked)
        found.append(Dataset._of(node).map(name, batched=stacked and not node.batched)._node)
    return tuple(found)


def _nodes(kind: str, datasets: object) -> tuple[Node, ...]:
    if isinstance(datasets, (Dataset, Mapping)) or not isinstance(datasets, Iterable):
        needs = "a list of datasets" if kind == "mix" else "several datasets"
        raise ArgumentTypeError(
            f"{kind} needs {needs}, as in Dataset.{kind}([a, b]); got {type(datasets).__name__}."
        )
    nodes = []
    for number, dataset in enumerate(datasets):
        if not isinstance(dataset, Dataset):
            raise ArgumentTypeError(
                f"{kind}: item {number} is {type(dataset).__name__}, not a Dataset. "
                "Wrap it in Dataset.from_source(...)."
            )
        nodes.append(dataset._node)
    return tuple(nodes)
