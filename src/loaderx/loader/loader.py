"""`DataLoader`: how to load a dataset."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Generic, TypedDict, TypeVar, Unpack, cast, overload

from loaderx.chain.fingerprint import fingerprints
from loaderx.chain.leaks import warn_of_changing_parts
from loaderx.chain.node import Node
from loaderx.dataset import Dataset
from loaderx.engines import Auto, Engine, Inline, Processes, Session, Threads
from loaderx.errors import (
    ArgumentError,
    ArgumentTypeError,
    ChainError,
    LoaderxError,
    check_bool,
    check_int,
    check_seed,
    hide_own_frames,
    hide_waiting_frames,
    one_line,
    warn_user,
)
from loaderx.frozen import Frozen
from loaderx.hints import LOADER, advised, attribute_error
from loaderx.loader.data_digest import DataDigest
from loaderx.loader.devices import Devices, warn_if_processes_repeat
from loaderx.loader.iterator import LoaderIterator, counting
from loaderx.loader.passes import Passes, StepPasses
from loaderx.loader.state import State
from loaderx.loader.stats import Counters, Stats, summary
from loaderx.loader.tasks.plan_work import PlanWork, work_of
from loaderx.loader.waiting import Waiting
from loaderx.order.epochs import NO_STEPS
from loaderx.plans.index_plan import IndexPlan
from loaderx.stages.batch import Batched
from loaderx.stages.repeat import Repeated
from loaderx.tree import Array, Tree

if TYPE_CHECKING:
    from loaderx.display.show import Shown
    from loaderx.loader.counts import Counts
    from loaderx.loader.doctor.diagnosis import Diagnosis
    from loaderx.loader.stream_iterator import StreamSetup
    from loaderx.plans.records import Provenance, Records

T = TypeVar("T")
U = TypeVar("U")

ENGINES = ("auto", "inline", "threads", "processes")


_STAGES = {  # the stages that the arguments of the short form stand for
    "shuffle": ".shuffle(seed=0)",
    "num_epochs": ".repeat(num_epochs), after .batch(...)",
    "seed": ".shuffle(seed=...)",
    "transform": ".map(transform), after .batch(...)",
    "drop_remainder": ".batch(n, drop_remainder=True)",
}


class _Default:
    """The default of an argument, where it matters whether the argument was given."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __repr__(self) -> str:
        return repr(self.value)


def _default(value: U) -> U:
    """A `_Default`, which signatures and type checkers take for the value itself."""
    return cast(U, _Default(value))


_SHUFFLE = _default(True)
_NUM_EPOCHS = _default(1)
_SEED = _default(0)
_TRANSFORM = _default(None)
_DROP_REMAINDER = _default(False)


if TYPE_CHECKING:

    class _HowToRun(TypedDict, total=False):
        """The arguments of both forms of `DataLoader`, for type checkers."""

        engine: str | Engine
        num_workers: int | None
        prefetch: int | None
        shard: tuple[int, int] | None
        sharding: Tree
        device_prefetch: int
        reshuffle: bool
        counts: Counts | None


class DataLoader(Generic[T]):
    """Runs a dataset.  Making one starts nothing; the first ``next`` of an iterator does.

    The k-th loop over a loader is its k-th epoch: a new order, and new random numbers.  It counts
    as soon as a batch was taken.

    >>> from loaderx import Dataset
    >>> with DataLoader(Dataset.range(10).shuffle(seed=1).batch(4)) as loader:
    ...     [batch.tolist() for batch in loader]
    [[0, 4, 6, 1], [7, 9, 8, 3], [5, 2]]

    The short form makes the usual chain (shuffle, batch, transform, repeat) of anything that can be
    indexed:

    >>> loader = DataLoader([{"x": i} for i in range(10)], batch_size=4, num_epochs=2)
    >>> len(loader)
    6

    Args:
        dataset: a `Dataset`, or anything that `Dataset.from_source` takes.
        batch_size: records in the global batch; passing it selects the short form.
        shuffle, num_epochs, seed, transform, drop_remainder: options of the short form.
            ``num_epochs=None`` is endless; ``seed=None`` is the dataset's own, or 0; ``transform``
            is a function of a batch.
        engine: ``"auto"`` (measures and chooses), ``"inline"``, ``"threads"``, ``"processes"``, or
            an engine object.
        num_workers: workers of the engine; 0 means inline, and for ``"auto"`` it is the most to
            try.  If workers were asked for and cannot be used, a warning says why.
        prefetch: batches kept ready ahead of the consumer.
        shard: ``(index, count)``: load only this host's rows of every batch.
        sharding: a jax Device or Sharding, or a tree of them that follows the batch (None: that
            leaf stays NumPy).  Batches are `jax.Array`; with a sharding over several processes
            each loads its own rows and all get the global array.
        device_prefetch: batches placed on the devices ahead of the consumer.
        reshuffle: False makes every loop the same: epoch 0, its order and its random numbers.
        counts: what ``loader.counts()`` of another process returned for this dataset.
    """

    @overload
    def __init__(
        self: DataLoader[U],
        dataset: Dataset[U],
        **how: Unpack[_HowToRun],
    ) -> None: ...
    @overload
    def __init__(
        self: DataLoader[Tree],
        dataset: object,
        *,
        batch_size: int | None = ...,
        shuffle: bool = ...,
        num_epochs: int | None = ...,
        seed: int | None = ...,
        transform: Callable[[Tree], Tree] | None = ...,
        drop_remainder: bool = ...,
        **how: Unpack[_HowToRun],
    ) -> None: ...
    @advised
    def __init__(
        self,
        dataset: object,
        *,
        batch_size: int | None = None,
        shuffle: bool = _SHUFFLE,
        num_epochs: int | None = _NUM_EPOCHS,
        seed: int | None = _SEED,
        transform: Callable[[Tree], Tree] | None = _TRANSFORM,
        drop_remainder: bool = _DROP_REMAINDER,
        engine: str | Engine = "auto",
        num_workers: int | None = None,
        prefetch: int | None = None,
        shard: tuple[int, int] | None = None,
        sharding: Tree = None,
        device_prefetch: int = 2,
        reshuffle: bool = True,
        counts: Counts | None = None,
    ) -> None:
        short: dict[str, object] = {
            "shuffle": shuffle,
            "num_epochs": num_epochs,
            "seed": seed,
            "transform": transform,
            "drop_remainder": drop_remainder,
        }
        given = [name for name, value in short.items() if type(value) is not _Default]
        chain = Dataset.from_source(dataset)
        if batch_size is not None:
            chain = _short_form(
                chain,
                batch_size,
                shuffle=_given(shuffle),
                num_epochs=_given(num_epochs),
                seed=_given(seed),
                transform=_given(transform),
                drop_remainder=_given(drop_remainder),
            )
        elif given:
            raise ArgumentTypeError(
                f"`{given[0]}` needs `batch_size`. Without `batch_size`, write it as a stage of "
                f"the dataset: {_STAGES[given[0]]}."
            )
        self.dataset: Dataset[Tree] = chain
        self._node, self._skipped = chain._node, NO_STEPS
        if chain._node.skipped_steps is not None:
            from loaderx.stages.skip_steps import all_steps  # late: most runs skip none

            self._node, self._skipped = all_steps(chain._node)
        self._engine = engine_of(engine, num_workers, prefetch)
        self._devices = Devices.of(sharding, device_prefetch, shard, self._node)
        self._shard = _check_shard(self._devices.shard if self._devices else shard, self._node)
        for count in self._devices.counts if self._devices else ():
            _check_shard((0, count), self._node)
        if shard is None:
            warn_if_processes_repeat(self._devices)
        # One epoch, and the chain of all epochs: `epoch(e)` may ask for more than the loader runs.
        self._base = self._node.one_epoch()
        endless = self._base.length is None
        self._all = self._base if endless else Repeated(self._base, None)
        self._stream = self._stream_setup(counts) if self._node.is_stream else None
        if counts is not None and self._stream is None:
            raise ArgumentError("`counts` is for streams: this dataset has a length.")
        self._data = self._stream.data if self._stream else DataDigest(self._base)
        self._work: PlanWork | None = None
        self._plan: IndexPlan | None = None  # for `records`, which workers do not make
        self._session: Session | None = None
        self._lock = threading.RLock()  # threads may ask for the first iterators at once
        self._counters = Counters()
        if isinstance(self._engine, Auto):
            self._counters.waiting = Waiting(self._engine.max_workers)
        self._iterators: weakref.WeakSet[LoaderIterator[Tree]] = weakref.WeakSet()
        self._reshuffle = check_bool("reshuffle", reshuffle)
        self._passes = self._new_passes()
        self._has_warned = False
        self._warns_of_parts = self._base is self._node  # else `repeat` has warned already

    if not TYPE_CHECKING:  # a type checker would believe that every name exists

        def __getattr__(self, name):
            raise attribute_error("a DataLoader", LOADER, name, self)

    def _stream_setup(self, counts: Counts | None) -> StreamSetup:
        from loaderx.loader.stream_iterator import StreamSetup  # late: most chains are not streams

        return StreamSetup(
            self._node, self._shard, self._engine, self._devices, counts, self._skipped
        )

    def __len__(self) -> int:
        stream = self._stream
        if stream is None or not stream.node.ends:
            length, passes = len(self.dataset), self._passes
            if not isinstance(passes, StepPasses):  # an endless stream
                return length
            return self._skipped.kept_in(passes.steps_of(passes.next))
        first = self._passes.next
        return stream.length(first, None if stream.epochs is None else first + stream.epochs)

    @advised
    def counts(self, epoch: int = 0) -> Counts:
        """Counts the rows of an epoch of a stream that ends, and the steps that they make.

        Every record is read once, by the workers of this loader; the result is kept in the cache
        folder.  From then on the loader has a length, and its iterators can `seek`.  On several
        hosts a stream that ends is counted at its first ``next``: each host counts its own lanes if
        a ``sharding`` joins them, so all of them must call this; else each counts all lanes, or
        gets the result of one as ``counts``.

        >>> from loaderx import Dataset
        >>> even = Dataset.range(100).filter(lambda x: x % 2 == 0)
        >>> loader = DataLoader(even.batch(8, pad_remainder=True))
        >>> loader.counts()
        Counts(epoch=0, rows=50, steps=7, padding=6, lanes=(50,))
        >>> len(loader)
        7
        """
        number = check_int("epoch", epoch, least=0)
        if self._stream is None:
            raise ChainError("counts() is for streams: this dataset has a length, len(loader).")
        try:
            return self._stream.counts().of(number)
        except LoaderxError as error:
            hide_own_frames(error)
            raise error
        except KeyboardInterrupt as error:
            hide_waiting_frames(error)
            raise error

    @advised
    def records(self, step: int, *, near: State | None = None) -> Records:
        """The records that the batch of a step is made of; with ``shard``, this host's rows of it.

        `Dataset.records` says more.  A stream must be read to know them, from the nearest position
        that is known: ``near``, or one of those that the loader keeps, every 1,000 steps.

        >>> from loaderx import Dataset
        >>> loader = DataLoader(Dataset.range(100).shuffle(seed=0).batch(4))
        >>> loader.records(81_234).index.tolist()  # in epoch 3249
        [20, 52, 84, 86]

        Args:
            step: as in ``iterator.step``, which counts through all epochs.
            near: for streams, a state that was saved before the step.  It also tells the loop: the
                steps of a stream are counted in each, and without a state those of the first.
        """
        number = check_int("step", step, least=0)
        if self._skipped.first_from(number) != number:
            raise ArgumentError(f"step {number} is skipped: it has no records.")
        return self._provenance().records(number, near)

    @advised
    def steps_of(
        self,
        index: int | Sequence[int] | Array,
        *,
        part: str | None = None,
        until: int | None = None,
        near: State | None = None,
    ) -> Array:
        """All steps that have a record, ascending: the inverse of `records`.

        >>> from loaderx import Dataset
        >>> loader = DataLoader(Dataset.range(100).shuffle(seed=0).batch(4))
        >>> loader.steps_of(12, until=100)  # of four epochs
        array([13, 38, 60, 89])

        Args:
            index: the number of a record in its source, as `Records.index` has it, or several:
                then the steps that have any of them.
            part: the name of the source, as `Records.part` has it, if there are several.
            until: looks at the steps before this one; by default at those of the first loop.
            near: for streams, a state: looks at the steps after it.
        """
        found = self._provenance().steps_of(index, part, until, near)
        return found[self._skipped.are_kept(found)]

    def _provenance(self) -> Provenance:
        if self._stream is not None:
            return self._stream.provenance()
        from loaderx.plans.records import IndexProvenance  # late: few programs ask for it

        if self._plan is None:
            self._plan = IndexPlan(self._all, shard=self._shard)
        return IndexProvenance(self._all, self._plan, self._node.length)

    def __bool__(self) -> bool:
        return True  # else `if loader` would call `__len__`, which may raise

    def __iter__(self) -> LoaderIterator[T]:
        self._warn_if_begun_again()
        first = self._passes.next
        self._warn_of_parts(first)
        made: LoaderIterator[T]
        if self._stream is not None:
            made = self._iterate_stream(self._stream)
        else:
            made = self._iterate(range(0))
        made._passes = self._passes
        made._begin_at(first)
        return made

    @advised
    def epoch(self, number: int) -> LoaderIterator[T]:
        """The stream of one epoch: ``epoch(0)`` then ``epoch(1)`` is what ``.repeat(2)`` gives.

        It is not counted: the next loop over the loader begins where it would have without it.
        """
        number = check_int("epoch", number, least=0)
        self._warn_of_parts(number)
        if self._stream is not None:
            return self._iterate_stream(self._stream, number)
        length = self._base.length
        if length is None:
            raise ChainError(
                "epoch(e) needs a dataset whose epochs end: put .repeat() after .batch(...)."
            )
        if (number + 1) * length > self._all.limit:
            raise ArgumentError(
                f"epoch({number}) is too large: only the steps of {self._all.limit // length} "
                "epochs can be numbered."
            )
        return self._iterate(range(number * length, (number + 1) * length))

    @cached_property
    def _chain(self) -> list[str]:
        return fingerprints(self._node, self._node.default_seed())

    def _new_passes(self) -> Passes:
        """The count of loops over the loader, at its start."""
        if self._stream is None:
            return StepPasses(self._node, self._base, counts=self._reshuffle)
        stream = self._stream
        return Passes(stream.epochs or 1, counts=self._reshuffle and stream.has_epochs)

    def _warn_of_parts(self, epoch: int) -> None:
        if epoch and self._warns_of_parts:
            self._warns_of_parts = not warn_of_changing_parts(self._base)

    def _iterate(self, steps: range) -> LoaderIterator[T]:
        devices = self._devices
        with self._lock:
            if self._work is None or self._session is None:
                node = devices.narrowed(self._all) if devices else self._all
                self._work = work_of(node, self._shard)
                self._session = self._engine.session(self._work)
        made: LoaderIterator[T] = LoaderIterator(
            self._all,
            self._base,
            self._chain,
            self._data,
            steps,
            self._shard,
            self._session,
            self._counters,
            self._work,
            devices.place if devices else None,
            self._skipped,
        )
        self._iterators.add(made)
        return made

    def _iterate_stream(self, stream: StreamSetup, epoch: int | None = None) -> LoaderIterator[T]:
        with self._lock:
            if self._session is None:
                self._session = self._engine.session(stream.work)
        place = self._devices.place_stream if self._devices else None
        made: LoaderIterator[T]
        if epoch is None:
            made = stream.iterator(self._session, self._counters, place)
        else:
            made = stream.epoch(self._session, self._counters, place, epoch)
        self._iterators.add(made)
        return made

    def _warn_if_begun_again(self) -> None:
        """Warns of a second loop over a dataset without epochs, unless the first took one batch."""
        has_epochs = self._base.ends or self._node.ends
        again = self._passes.longest > 1 and self._reshuffle and not has_epochs
        if not again or self._has_warned or not self._node.random_stages:
            return
        self._has_warned = True
        warn_user(
            "this dataset is endless and has no epochs, so a second loop over the loader gives "
            "the same batches again, from step 0. Take all batches from one iterator, "
            "`it = iter(loader)`; or put .repeat() after .batch(...), and every loop begins a new "
            "epoch."
        )

    def stats(self, *, reset: bool = False) -> Stats:
        """What has been loaded so far, how long the consumer waited, and what took the time.

        With ``reset=True`` counting starts again from 0 afterwards, for example to log each epoch:
        ``log(loader.stats(reset=True).as_dict())``.
        """
        reset = check_bool("reset", reset)
        with counting:
            self._count()
            order_seconds = self._work.plan.order_seconds if self._work else 0.0
            workers = self._session.workers_stats() if self._session else ()
            found = summary(self._counters, order_seconds, workers)
            if reset:
                self._counters.clear(order_seconds)
            return found

    def _count(self) -> None:
        for iterator in self._living():
            iterator._count()

    def _totals(self) -> tuple[float, float, float]:
        """The batches, seconds and seconds waited since the loader was made, for `jax.fleet`."""
        with counting:
            self._count()
            return self._counters.totals

    def doctor(self) -> Diagnosis:
        """Whether the loop waits for its data, why, and what to change, from what was seen so far.

        The command ``loaderx doctor train.py`` knows more: it measures steps without their data.

        >>> from loaderx import Dataset
        >>> with DataLoader(Dataset.range(100).batch(10), engine="inline") as loader:
        ...     batches = list(loader)
        >>> loader.doctor().engine
        'inline'
        """
        from loaderx.loader.doctor.from_stats import diagnosis  # late: few ask

        if self._stream is not None:
            return diagnosis(self.stats(), self._stream.work)
        return diagnosis(self.stats(), self._work)

    def watch(self, *, every: float = 10.0) -> None:
        """Prints a line about the last seconds now and then, if standard error is a terminal.

        It ends with the loader's `close`, or with a `trace`.

        Args:
            every: seconds from one line to the next.
        """
        from loaderx.loader.watch import Watch  # late: few ask

        made = Watch(every)
        self._counters.listening.stop()
        self._counters.listening.trace = made

    @advised
    def trace(self, path: str | os.PathLike[str], *, steps: int = 200) -> None:
        """Writes what the next steps do to a file that https://ui.perfetto.dev and XProf open.

        It shows when the loop waited in ``next``, when it did its own work, when batches were
        placed on devices, and what each worker made meanwhile.  Elements that take long are shown
        stage by stage; of fast ones, some.  The file is written after these steps, or before, when
        the stream ends, the loader is closed or the program ends.

        >>> import json, os, tempfile
        >>> from loaderx import Dataset
        >>> file = os.path.join(tempfile.mkdtemp(), "steps.json")
        >>> with DataLoader(Dataset.range(100).batch(10), engine="inline") as loader:
        ...     loader.trace(file, steps=3)
        ...     batches = list(loader)
        >>> with open(file) as opened:
        ...     events = json.load(opened)["traceEvents"]
        >>> [one["args"]["step"] for one in events if one["name"] == "next"]
        [0, 1, 2]

        Args:
            path: of the file.
            steps: how many to trace.
        """
        from loaderx.loader.trace import Trace

        made = Trace(os.fspath(path), check_int("steps", steps, least=1))
        self._counters.listening.stop()
        self._counters.listening.trace = made
        made.write_at_end_of(self._counters.listening)

    def _living(self) -> list[LoaderIterator[Tree]]:
        while True:
            with contextlib.suppress(RuntimeError):  # another thread has just made an iterator
                return list(self._iterators)

    def close(self) -> None:
        """Stops every iterator of this loader, and its workers.

        Iterators keep their positions, and ``next`` starts the workers again.  It may be called at
        any time, also from another thread or a signal handler: a ``next`` that is running then
        hands out its batch or raises a `LoaderxError`; no batch is lost.
        """
        for iterator in self._living():
            iterator.close()
        if self._session is not None:
            self._session.close()
        self._counters.listening.stop()

    def __getstate__(self) -> dict[str, object]:
        """Only the description: so a function that holds its loader can be sent to a worker."""
        _check_pickled(self._engine)
        return self._description()

    def _description(self) -> dict[str, object]:
        left = ("_work", "_plan", "_session", "_iterators", "_lock", "_passes")
        return {**self.__dict__, **dict.fromkeys(left)}

    def __copy__(self) -> DataLoader[T]:
        made = object.__new__(type(self))
        made.__setstate__(self._description())
        return made

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _iterators=weakref.WeakSet(), _lock=threading.RLock())
        self._passes = self._new_passes()

    def __enter__(self) -> DataLoader[T]:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def show(self, n: int = 36) -> Shown:
        """The first ``n`` rows of the first batch, as `loaderx.show` shows them.

        The batch is the global one.  It is made here, whatever the engine and the host, and no
        position changes.

        >>> DataLoader([{"x": 1.5}, {"x": 2.5}], batch_size=2, shuffle=False).show()
        x  float32[2]  1.5, 2.5

        Args:
            n: how many rows.
        """
        return self.dataset.show(n)

    def _repr_html_(self) -> str:
        from html import escape  # for notebooks only

        return f"<p>DataLoader({escape(str(self._engine))}) of</p>{self.dataset._repr_html_()}"

    def __repr__(self) -> str:
        return f"DataLoader({self._engine}) of\n{self.dataset!r}"


def _check_pickled(engine: Engine) -> None:
    """Raises an error that names an engine which cannot be pickled."""
    if isinstance(engine, Frozen):
        return
    import cloudpickle  # late: slow to import

    from loaderx.engines.processes.pickling import PicklingError

    try:
        cloudpickle.dumps(engine)
    except Exception as error:
        raise PicklingError(
            f"this loader cannot be pickled, since its engine {type(engine).__name__} holds what "
            f"cannot be ({one_line(error)}). Pickle the dataset, and make a loader of it there."
        ) from error


def _given(value: U) -> U:
    """An argument, or the value of its default."""
    return cast(U, value.value) if isinstance(value, _Default) else value


def _short_form(
    dataset: Dataset[Tree],
    batch_size: int,
    *,
    shuffle: bool,
    num_epochs: int | None,
    seed: int | None,
    transform: Callable[[Tree], Tree] | None,
    drop_remainder: bool,
) -> Dataset[Tree]:
    check_int("batch_size", batch_size, least=1)
    if seed is not None:
        check_seed(seed)
    shuffle = check_bool("shuffle", shuffle)
    if num_epochs is not None:
        check_int("num_epochs", num_epochs, least=1)
    if dataset._node.batched:
        raise ChainError(
            "`batch_size` was given, but the dataset already has a .batch(...). Leave one out."
        )
    if shuffle and dataset._node.is_stream:
        raise ChainError(
            "a stream cannot be shuffled as a whole: pass shuffle=False, and put "
            ".shuffle(window=...) into the dataset."
        )
    records = dataset._node.length
    if drop_remainder and records is not None and records < batch_size:
        raise ArgumentError(
            f"batch_size={batch_size} with drop_remainder=True leaves nothing of {records} "
            "records. Use a smaller batch_size, or leave drop_remainder out."
        )
    if shuffle:
        dataset = dataset.shuffle(seed=seed)
    dataset = dataset.batch(batch_size, drop_remainder=drop_remainder)
    if transform is not None:
        _check_transform(transform)
        dataset = dataset.map(transform)
    return dataset if num_epochs == 1 else dataset.repeat(num_epochs)


def _check_transform(transform: object) -> None:
    if isinstance(transform, (tuple, list)):
        raise ArgumentTypeError(
            f"`transform` is one function of a whole batch, got a {type(transform).__name__}. For "
            "several in turn, leave it out and write .batch(n).map(f).map(g); for one of each "
            'leaf, lambda batch: {"data": f(batch["data"]), "label": g(batch["label"])}.'
        )
    if not callable(transform) and not hasattr(transform, "map"):
        raise ArgumentTypeError(
            "`transform` must be a function of a batch, or an object with a .map method; got "
            f"{transform!r} ({type(transform).__name__})."
        )


def engine_of(engine: str | Engine, num_workers: int | None, prefetch: int | None) -> Engine:
    """The engine that these arguments of a loader stand for."""
    if num_workers is not None:
        check_int("num_workers", num_workers, least=0)
    if prefetch is not None:
        check_int("prefetch", prefetch, least=0)
    if not isinstance(engine, str):
        if isinstance(engine, type):
            raise ArgumentTypeError(
                f"`engine` is the class {engine.__name__}; pass an object: {engine.__name__}()."
            )
        if not callable(getattr(engine, "session", None)):
            raise ArgumentTypeError(
                f"`engine` must be one of {', '.join(map(repr, ENGINES))}, or an engine object; "
                f"got {engine!r}."
            )
        if num_workers is not None or prefetch is not None:
            raise ArgumentError(
                "`num_workers` and `prefetch` cannot be used with an engine object: pass them to "
                "the engine, such as Threads(2, prefetch=4)."
            )
        return engine
    if engine not in ENGINES:
        known = ", ".join(map(repr, ENGINES))
        raise ArgumentError(f"`engine` must be one of {known}, got {engine!r}.")
    if engine == "inline" or num_workers == 0:
        return Inline()
    if engine == "threads":
        return Threads(num_workers, prefetch)
    if engine == "processes":
        return Processes(num_workers, prefetch)
    return Auto(num_workers, prefetch)


def shard_of(shard: tuple[int, int] | None) -> tuple[int, int]:
    """The index and count that an argument `shard` stands for."""
    if shard is None:
        return (0, 1)
    if not isinstance(shard, (tuple, list)) or len(shard) != 2:
        raise ArgumentTypeError(f"`shard` must be (index, count), got {shard!r}.")
    index, count = (
        check_int("shard index", shard[0], least=0),
        check_int("shard count", shard[1], least=1),
    )
    if index >= count:
        raise ArgumentError(f"`shard` index must be below its count, got ({index}, {count}).")
    return index, count


def _check_shard(shard: tuple[int, int] | None, node: Node) -> tuple[int, int]:
    index, count = shard_of(shard)
    if count == 1:
        return (0, 1)
    if node.is_stream:
        from loaderx.loader.stream_iterator import check_stream_shard  # late, as above

        check_stream_shard(node, count)
        return (index, count)
    if not node.batched:
        raise ChainError("`shard` splits batches: the dataset needs a .batch(...).")
    for stage in node.batch_stages():
        assert isinstance(stage, Batched)  # a dataset that is read by index has no other
        _check_host_batch(stage, count, node.uniform)
    return (index, count)


def _check_host_batch(node: Batched, count: int, uniform: bool) -> None:
    if node.size % count:
        raise ArgumentError(
            f"{count} hosts cannot share batches of {node.size} records: the number of hosts must "
            "divide the batch size."
        )
    if node.can_be_short and not uniform:
        raise ChainError(
            f"the last batch of {node.stage} is short, and some hosts would get no rows of it. "
            "Write drop_remainder=True or pad_remainder=True."
        )
