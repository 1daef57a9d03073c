"""The inputs of chains: sources that are read by index, and iterables."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from loaderx.chain.encoding import array_text, stage_text
from loaderx.chain.families import ByIndex, ChangesPlaces, InOrder
from loaderx.chain.numbers import checked_length
from loaderx.errors import ChainError, LoaderxError, RecordError, StackError, StateError
from loaderx.locks import new_lock
from loaderx.memory import Lend, aligned
from loaderx.reading.addresses import SourceAddresses
from loaderx.reading.batch_readers import BatchReader
from loaderx.reading.context import ReadContext
from loaderx.reading.error_text import (
    READING,
    USER_ERRORS,
    error_line,
    failed,
    raise_if_signalled,
)
from loaderx.reading.lookahead import Path
from loaderx.reading.operators import (
    BatchOperator,
    Gather,
    RecordOperator,
    RecordOperatorOf,
    Request,
    Sharing,
    SourceRecords,
    Views,
)
from loaderx.reading.readers import Reader
from loaderx.reading.rows import Positions, Record, Rows
from loaderx.reading.saved_position import Changed, LanePosition, entries, shown, whole
from loaderx.reading.single_records import in_groups, one_by_one
from loaderx.reading.stacking import NO_PADDING, Padding, add_leaf, filler
from loaderx.reading.trails import Found, Sought, Traced, Trail
from loaderx.reading.unit_plan import epoch_key
from loaderx.rng import ROW, Keys, fold
from loaderx.sources import ArraySource, ObjectSource, Source
from loaderx.sources.base import (
    BadRecordError,
    FileSource,
    Indices,
    OwnSource,
    PaddedGather,
    PadsLists,
    chunk_starts,
)
from loaderx.tree import LEAF, Array, Tree, flatten

if TYPE_CHECKING:
    from loaderx.chain.stream_build import Above, MakeReader, Reading, StreamBuild
    from loaderx.sources.adapt.iterables import IterableSource, OpenIterable

_POSITION = ("records read", "has it ended", "its own state")
MOST_READ = 1 << 40  # records of an iterable: skipping more would take weeks


class Input(ChangesPlaces):
    """The base of nodes that a chain begins with."""

    inputs = ()
    window = None
    unit_cost = "nothing"
    can_drop = False
    is_one_dataset = True
    batched = False
    batch_size = None

    def batch_operator(self, request: Request) -> BatchOperator:
        raise AssertionError("a source has no batches")

    def after_batch(self, below: BatchReader, build: StreamBuild) -> BatchReader:
        raise AssertionError("a source has no batches")


# Sources ----------------------------------------------------------------------------------------


class FromSource(ByIndex, Input):
    """The records of a source, by index."""

    source: Source
    decode: str = ""  # how its values are decoded, where that is not the default

    @cached_property
    def spec(self) -> Tree | None:
        return self.source.spec

    @cached_property
    def length(self) -> int:
        return checked_length(len(self.source))

    @cached_property
    def stage(self) -> str:
        return f"Dataset.{self.source.label()}"

    def fingerprint(self, seed: int) -> str:
        return stage_text(
            "source", {"length": self.length, "spec": _spec(self.spec)}, self, without=("source",)
        )

    @property
    def user_objects(self) -> tuple[tuple[str, object], ...]:
        return ((self.stage, self.source),)

    @property
    def random_access(self) -> bool:
        return self.source.random_access

    @cached_property
    def block_starts(self) -> Indices | None:
        return chunk_starts(self.source)

    def make_record_operator(self, request: Request) -> RecordOperator:
        return ReadSource(self.source, stacked=request.stacked)


def _spec(spec: Tree | None) -> object:
    """The spec in a saved state: leaves by name, in sorted order."""
    if spec is None:
        return None
    leaves, structure = flatten(spec)
    texts = [array_text(leaf.shape, leaf.dtype) for leaf in leaves]
    pairs = sorted(zip(structure.paths(), texts, strict=True))
    if structure is LEAF:
        return texts[0]
    named = dict(pairs)
    return named if len(named) == len(pairs) else pairs  # {"a.b": x, "a": {"b": y}}


class ReadSource(RecordOperatorOf[SourceAddresses]):
    """Records of a source, gathered in one call where it can do that."""

    def __init__(self, source: Source, *, stacked: bool) -> None:
        super().__init__("source")
        self.source = source
        self.stacked = stacked and source.gathers
        self.lock = contextlib.nullcontext() if source.thread_safe else new_lock()
        self.padding = NO_PADDING
        self.padded: PaddedGather | None = None
        self.pad_values: dict[str, Array] = {}

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "lock": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self.lock = contextlib.nullcontext() if self.source.thread_safe else new_lock()

    def locate(self, epochs: Keys, positions: Positions) -> SourceAddresses:
        return SourceAddresses(epochs, positions)

    def trails(self, trail: Trail) -> Iterator[Trail]:
        yield trail.through(self.moves)

    def below(self, trail: Trail) -> Iterator[tuple[Traced, Trail]]:
        return iter(())

    def find_below(self, sought: Sought) -> Found:
        each = np.arange(len(sought.records))
        return Found(each, each, np.zeros_like(each)).at(sought.records, sought.limits)

    def read(self, addresses: SourceAddresses, context: ReadContext) -> Rows:
        index = addresses.index
        try:
            with self.lock:
                if self.padded is not None:
                    rows = self._padded_rows(self.padded, index, context.lend)
                    if rows is not None:
                        return rows
                if self.stacked:
                    return Rows.of_columns(self.source.gather(index, context.lend), len(index))
                return Rows.of_records(self.source.records(index))
        except BadRecordError:
            pass
        except LoaderxError as error:  # the source itself is at fault, not a record
            raise self.failer(addresses, READING)(None, error) from error
        except USER_ERRORS as error:  # kept: the errors below must not be raised from it
            raise_if_signalled(error)
        return self._one_by_one(addresses)

    def source_records(self, addresses: SourceAddresses) -> Iterator[SourceRecords]:
        if self.source.fetches:
            yield self.source, addresses.index

    def pad(self, padding: Padding) -> None:
        made = self.source.padded(padding.lengths) if isinstance(self.source, PadsLists) else None
        if made is None:
            return
        dtypes = made.dtypes()
        # `stack` reports a value that does not fit.
        with contextlib.suppress(StackError):
            self.pad_values = {
                path: filler(dtypes[path], padding.value_for(path), path)
                for path in padding.lengths
            }
            self.padding, self.padded = padding, made

    def _padded_rows(self, columns: PaddedGather, index: Positions, lend: Lend) -> Rows | None:
        """Padded columns; None if the records must be padded one by one."""
        try:
            batch = columns.gather(index, self.pad_values, lend)
            if batch is None:
                return None
            tree = batch.tree
            for path, lengths in batch.lengths.items():
                tree = add_leaf(tree, f"{path}_length", aligned(lengths), "pad_to")
        except Exception:  # a bad record, or equal names of leaves: the slow path reports it
            return None
        return Rows.of_columns(tree, len(index), padding=self.padding)

    def _one_by_one(self, addresses: SourceAddresses) -> Rows:
        """Reads each record alone: to find the one that fails, or to retry."""
        found: list[Record] = []
        for number in range(len(addresses)):
            index = addresses.index[number : number + 1]
            try:
                with self.lock:
                    found += self.source.records(index)
            except USER_ERRORS as error:  # the source names the file itself, if it knows it
                at = int(index[0])
                raise failed(READING, f"record {at}", at, error) from error
        return Rows.of_records(found)

    @property
    def large_records(self) -> bool:
        return isinstance(self.source, FileSource) and self.source.large_records

    @property
    def reads_each(self) -> bool:
        return not self.stacked

    def each(self, addresses: SourceAddresses) -> Iterator[Record]:
        source, index = self.source, addresses.index

        def again(number: int, error: BaseException) -> Record:
            return self._again(addresses.cut(number, number + 1), error)

        read = source.reader() if isinstance(source, ObjectSource) else None
        if read is None:
            return in_groups(source.records, index, self.lock, again)
        return one_by_one(read, index.tolist(), self.lock, again)

    def _again(self, address: SourceAddresses, error: BaseException) -> Record:
        """Reads a record that failed once more, as `read` does."""
        raise_if_signalled(error)
        if isinstance(error, LoaderxError) and not isinstance(error, BadRecordError):
            raise self.failer(address, READING)(None, error) from error
        return self._one_by_one(address).records()[0]

    @property
    def sharing(self) -> Sharing:
        reads_each = isinstance(self.source, ObjectSource) and self.source.reads_each
        return Sharing.USEFUL if reads_each and not self.stacked else Sharing.POINTLESS

    def keys(self, addresses: SourceAddresses) -> Keys:
        return fold(addresses.epochs, addresses.index, ROW)

    def index(self, addresses: SourceAddresses, number: int) -> tuple[int, str]:
        index = int(addresses.index[number])
        if isinstance(self.source, FileSource) and self.source.one_file_per_record:
            return index, f"record {index} ({self.source.where(index)})"
        return index, f"record {index}"

    def gather_of(self, width: int) -> Gather | None:
        source = self.source
        if not self.stacked or not source.thread_safe:
            return None
        if isinstance(source, OwnSource):
            return source.gatherer(width)
        return source.gather

    def array_source(self) -> ArraySource | None:
        return self.source if self.stacked and isinstance(self.source, ArraySource) else None

    def views(self) -> Views | None:
        if isinstance(self.source, ArraySource) and not self.moves:
            return self.source.window
        return None


# Iterables --------------------------------------------------------------------------------------


class FromIterable(InOrder, Input):
    """The records of an iterable, in its order."""

    source: IterableSource

    spec = None
    ends = True  # assumed: an iterable that never ends needs no second epoch
    is_ordered = True
    user_objects = ()  # it is read in this process, and never sent to workers

    @property
    def stage(self) -> str:
        return f"Dataset.from_iterable({self.source.name})"

    def fingerprint(self, seed: int) -> str:
        return stage_text("iterable", {}, self, without=("source",))

    def check_lanes(self, lanes: int) -> None:
        if not self.source.shards:
            raise ChainError(
                f"lanes={lanes} needs {lanes} parts of the iterable: give from_iterable a function "
                "of (shard, count) that reads one of them."
            )

    def reader(self, build: StreamBuild, above: Above) -> MakeReader:
        source, stage, lanes, keyed = self.source, self.stage, build.lanes, build.keyed
        ordinals = above.ordinals

        def iterable(reading: Reading, lane: int) -> Reader:
            return IterableReader(source, stage, lane, lanes, ordinals, keyed)

        return build.windowed(iterable, above, above.stages)


class IterableReader(Reader):
    """Records of an iterable.  State: records read, and the source's own state."""

    def __init__(
        self,
        source: IterableSource,
        stage: str,
        lane: int,
        lanes: int,
        ordinals: Sequence[int],
        keyed: bool,
    ) -> None:
        self.source, self.stage = source, stage
        self.lane, self.lanes = lane, lanes
        self.ordinals, self.keyed = ordinals, keyed
        self.path: Path = (0,) * len(ordinals)
        self.opened: OpenIterable | None = None
        self.position: LanePosition = None
        self.records: list[Record] = []

    def start(self, path: Path) -> None:
        self._go(path, None)

    def _go(self, path: Path, position: LanePosition) -> None:
        self.path, self.position = path, position
        self.opened, self.records = None, []

    def ready(self, n: int) -> int:
        if not self.records:
            try:
                if self.opened is None:
                    self.opened = self.source.open(self.lane, self.lanes, self.position)
                self.records = self.opened.read(n)
            except LoaderxError:
                raise
            except USER_ERRORS as error:
                raise self._failure(error) from error
        return min(n, len(self.records))

    def _failure(self, error: BaseException) -> RecordError:
        number = None if self.opened is None else self.opened.count
        where = "when it was opened" if number is None else f"on record {number}"
        text = f"{self.stage} failed {where}: {error_line(error, self.stage, is_batch=False)}"
        return RecordError(text, index=number, stage=self.stage)

    def take(self, n: int) -> Rows:
        assert self.opened is not None
        records, self.records = self.records[:n], self.records[n:]
        first = self.opened.count - len(self.records) - n
        numbers = np.arange(first, first + n)
        key = epoch_key(self.ordinals, self.path)
        keys = fold(key, numbers, ROW) if self.keyed else None
        return Rows.of_records(records, keys, origins=numbers, identify=_identify)

    @property
    def reads_records(self) -> bool:
        return True

    def state(self) -> LanePosition:
        """The position of the next record; called only when all records read have been taken."""
        assert not self.records
        return self.position if self.opened is None else self.opened.position()

    def restore(self, path: Path, state: LanePosition, *, changed: Changed) -> None:
        if state is not None:
            count, ended, own = entries(state, _POSITION)
            whole(count, "records read", MOST_READ)
            if not isinstance(ended, bool) or (ended and own is not None):
                raise StateError(
                    f"the state has {shown(ended)} where True or False is expected: whether an "
                    "iterable has ended, which then has no state of its own."
                )
        self._go(path, state)

    def check_window(self, number: int, window: int, used: int) -> None:
        """Raises unless this is the position at the start of a window."""
        count, ended = 0, False
        if self.position is not None:
            read, ended_there, _ = entries(self.position, _POSITION)
            count, ended = whole(read, "records read", MOST_READ), bool(ended_there)
        at_end = ended and not used and (number - 1) * window < count < number * window
        if count != number * window and not at_end:
            raise StateError(
                f"the state is in window {number}, which begins after {number * window} records, "
                f"and has read {count}."
            )


def _identify(number: int) -> tuple[int | None, str]:
    return number, f"record {number}"
