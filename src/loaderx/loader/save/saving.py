"""`Dataset.save`: writes the records of a dataset to a folder in the native layout.

Part k holds records k·m to (k+1)·m - 1, whoever writes it.  If there are parts enough for all
workers, each writes whole parts itself, under names of its own; this process notes them in the
journal and gives them their names, in order.  With fewer parts, workers turn some records at a time
into columns, and this process appends them to the current part.  The next run keeps the parts that
a killed run completed (`save_folder`).

The type of a column is found as records come, and only grows wider: a part begins with the type of
the sample and of the parts before it, and at the end parts with a narrower type are written again.

Of several processes that save a shard each, the last joins the parts: it holds the journal of the
whole folder, which is free only while nobody writes parts (`save_journal`).  In a bucket there are
no locks, and any process that finds all parts may complete the folder (`SaveBucket`).
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import cast

import numpy as np

from loaderx.chain.node import Node
from loaderx.dataset import Dataset, SaveArguments
from loaderx.engines import Engine
from loaderx.engines.base import Measured, Session
from loaderx.errors import ArgumentTypeError, ChainError, FileError, check_int, warn_user
from loaderx.frozen import Frozen
from loaderx.loader.failures import FailureLog, failure_limit
from loaderx.loader.iterator import CLOSE_PATIENCE_S, LoaderIterator
from loaderx.loader.loader import DataLoader, engine_of, shard_of
from loaderx.loader.run import TaskRun
from loaderx.loader.save.sample import (
    LOOKED_AT,
    NO_RECORDS,
    made_by,
    read_sample,
    record_bytes,
)
from loaderx.loader.save.work import PartTasks, SaveWork, Steps, written_part
from loaderx.loader.tasks.steps import StepTasks
from loaderx.memory import Pool
from loaderx.reading.context import ReadContext
from loaderx.reading.rows import Rows
from loaderx.reading.stored_rows import encoded_rows
from loaderx.sources.cache.folder import Json
from loaderx.sources.columns.linear import as_lines
from loaderx.sources.columns.record_columns import Encoded
from loaderx.sources.native.save_folder import (
    SaveBucket,
    SaveFolder,
    check_folder,
    folder_path,
    is_complete,
)
from loaderx.sources.native.save_journal import WHOLE, FolderInUseError, Journal, open_journal
from loaderx.sources.native.save_parts import PartsWriter, check_images, finish, known_type
from loaderx.sources.progress import Progress, progress
from loaderx.sources.remote.urls import is_url
from loaderx.tree import Tree

_STEP_BYTES, _STEP_RECORDS = 1 << 22, 1 << 13  # approximate limits of one step


class SaveOptions(Frozen):
    """The arguments of `Dataset.save`, checked."""

    part_bytes: int
    images: tuple[str, ...]
    engine: Engine
    shard: tuple[int, int]


def save(dataset: Dataset[Tree], given: SaveArguments) -> None:
    """Saves a dataset, or resumes an interrupted save of the same dataset."""
    place, images = folder_path("folder", given.folder), given.images
    if isinstance(images, str) or not all(isinstance(name, str) for name in images):
        raise ArgumentTypeError(f"`images` must be a list of names of leaves, got {images!r}.")
    engine = cast("str | Engine", given.engine)  # `dataset`, below engines, cannot name the type
    options = SaveOptions(
        check_int("part_bytes", given.part_bytes, least=1),
        tuple(images),
        engine_of(engine, given.num_workers, None),
        shard_of(given.shard),
    )
    check_folder(place)
    _check_chain(dataset._node, options.shard, given.folder)
    try:
        kind = _StreamSaving if dataset._node.is_stream else _IndexSaving
        kind(dataset, place, options).save()
    except OSError as error:  # a full or read-only disk; errors of functions are RecordErrors
        raise FileError(
            f"cannot save into {place}: {error}. Finished parts are kept: save again to resume."
        ) from error


def _check_chain(node: Node, shard: tuple[int, int], folder: object) -> None:
    if node.batched:
        raise ChainError(
            "save writes records, and this dataset has batches: put .save(...) before .batch(...), "
            "or .unbatch() before it."
        )
    if not node.ends:
        raise ChainError("an endless dataset cannot be saved: limit it with .take(n).")
    if node.is_stream and shard != WHOLE:
        index, count = shard
        raise ChainError(
            f"save(shard={shard}) needs a dataset that is read by index, and this one is a stream: "
            "nobody knows which of its records belong into which part. Give each process a folder "
            "of its own, and some of the records before the first stage that makes a stream: "
            f"ds[{index}::{count}].filter(...).save('{folder}/{index}'). Dataset.open(['{folder}/0'"
            f", ..., '{folder}/{count - 1}']) is one dataset then."
        )


class _Saving:
    """Saves one dataset to a folder."""

    def __init__(self, dataset: Dataset[Tree], place: str, options: SaveOptions) -> None:
        self.dataset, self.node, self.place, self.options = dataset, dataset._node, place, options
        self.failures = _Failures(self.node)

    def save(self) -> None:
        sample = self._sample()
        check_images(sample.kind, self.options.images)
        told = made_by(self.node, sample, self.options.images)
        if is_complete(self.place, told):
            return
        try:
            self._save(sample, told)
        except FileError:  # in a bucket, who completes the folder removes what others may read
            if not is_complete(self.place, told):
                raise

    def _save(self, sample: Encoded, told: Json) -> None:
        with open_journal(self.place, self.options.shard) as journal:
            if is_complete(self.place, told):  # by another process, until this one had the lock
                return
            folder = self._folder(journal, told, sample)
            folder.remove_unfinished()
            self._write(folder, sample)
            if self.options.shard == WHOLE:
                self._finish(folder, told)
        if self.options.shard != WHOLE:
            self._join(told, sample)

    def _folder(self, journal: Journal, told: Json, sample: Encoded) -> SaveFolder:
        most = max(1, self.options.part_bytes // record_bytes(sample))
        _, count = self.options.shard
        # In a bucket, a part is the same with any number of shards.
        kind, shards = (SaveBucket, 1) if is_url(self.place) else (SaveFolder, count)
        return kind(journal, told, most, records=self.node.length or 0, shards=shards)

    def _join(self, told: Json, sample: Encoded) -> None:
        """Completes the folder, if all shards are there and nobody else does it."""
        with contextlib.suppress(FolderInUseError), open_journal(self.place) as journal:
            if is_complete(self.place, told):
                return
            folder = self._folder(journal, told, sample)
            if len(folder.parts) == len(folder.numbers):
                self._finish(folder, told)

    def _finish(self, folder: SaveFolder, told: Json) -> None:
        finish(folder, told, self.options.images, self.dataset.classes)

    def _sample(self) -> Encoded:
        """Some records as columns."""
        raise NotImplementedError

    def _write(self, folder: SaveFolder, sample: Encoded) -> None:
        """Writes the missing parts."""
        raise NotImplementedError


def _step_records(sample: Encoded, folder: SaveFolder) -> int:
    return max(1, min(_STEP_BYTES // record_bytes(sample), _STEP_RECORDS, folder.part_records))


class _IndexSaving(_Saving):
    """A dataset that is read by index: workers make the columns."""

    def _sample(self) -> Encoded:
        return read_sample(self.node, ReadContext(Pool().lend))[1]

    def _write(self, folder: SaveFolder, sample: Encoded) -> None:
        length = self.node.length
        assert length is not None
        steps = Steps(length, folder.part_records, _step_records(sample, folder))
        records = sum(steps.records_of(part) for part in folder.numbers)
        if not records:
            warn_user(
                f"shard={self.options.shard} has nothing to save: {self.place} gets {steps.parts} "
                f"part{'s' if steps.parts > 1 else ''}. Give all shards a smaller `part_bytes`."
            )
        kind = known_type(folder, as_lines(sample.kind))
        work = SaveWork(self.node, steps, self.place, kind)
        missing = [part for part in folder.numbers if part not in folder.parts]
        session = self.options.engine.session(work)
        try:
            with progress(f"saving into {self.place}", records, "records") as shown:
                shown.add(folder.records)
                # With so many parts, no worker waits long for the others at the end.
                if 0 < session.window <= len(missing):
                    self._add_parts(session, work, missing, folder, shown)
                else:
                    with PartsWriter(self.place, kind, shown, uses_lines=True) as parts:
                        for run in _runs(missing):
                            self._write_parts(session, work, run, folder, parts)
        finally:
            work.is_over = True
            session.finish(monotonic() + CLOSE_PATIENCE_S)  # threads remove their parts themselves
            session.close()
            folder.remove_unfinished()  # parts of workers that were stopped
        self.failures.warn(records)

    def _add_parts(
        self,
        session: Session,
        work: SaveWork,
        missing: Sequence[int],
        folder: SaveFolder,
        shown: Progress,
    ) -> None:
        """Adds parts that workers write."""
        session.begin(len(missing))
        run = TaskRun(session, work, PartTasks(session, missing))
        try:
            for part in missing:
                element = run.next()
                if isinstance(element, Measured):
                    self.failures.add(element, part)
                    element = element.value
                done = written_part(element)
                folder.add(done)
                shown.add(done.part.records)
        finally:
            run.close()

    def _write_parts(
        self,
        session: Session,
        work: SaveWork,
        numbers: range,
        folder: SaveFolder,
        parts: PartsWriter,
    ) -> None:
        """Writes consecutive parts, whose columns workers make."""
        steps = work.steps_of(numbers)
        session.begin(len(steps))
        run = work.ahead(TaskRun(session, work, StepTasks(session, steps)), steps)
        try:
            for part in numbers:
                folder.add(work.append_part(part, run, parts, self.failures.add))
        finally:
            run.close()


def _runs(parts: Sequence[int]) -> Iterator[range]:
    """Numbers of parts as ranges."""
    for _, group in itertools.groupby(enumerate(parts), lambda pair: pair[1] - pair[0]):
        found = [part for _, part in group]
        yield range(found[0], found[-1] + 1)


class _Failures:
    """Records that `on_error` has replaced."""

    def __init__(self, node: Node) -> None:
        self._log, self._limit = FailureLog(), failure_limit(node)

    def add(self, element: Measured, step: int) -> None:
        self._log.add(element.failures, step, self._limit)
        self._log.check(element.failures[-1], step, self._limit)

    def warn(self, records: int) -> None:
        if self._log.count:
            first = self._log.kept[0]
            warn_user(
                f"{self._log.count:,} of {records:,} records have failed, and others were saved in "
                f"their place. The first: {first.stage} failed on {first.record}: {first.error}."
            )


class _StreamSaving(_Saving):
    """A stream: a loader runs it, and the state after each part says where to resume."""

    def _sample(self) -> Encoded:
        records = list(itertools.islice(self.dataset, LOOKED_AT))
        if not records:
            raise ChainError(NO_RECORDS)
        return encoded_rows(Rows.of_records(records), np.arange(len(records)))

    def _write(self, folder: SaveFolder, sample: Encoded) -> None:
        at_once, place, is_over = _step_records(sample, folder), 0, False
        with (
            progress(f"saving into {self.place}", self.node.length, "records") as shown,
            PartsWriter(self.place, known_type(folder), shown, uses_lines=True) as parts,
            DataLoader(self.dataset, engine=self.options.engine) as loader,
        ):
            shown.add(folder.records)
            records = iter(loader)
            while not is_over:
                part = next(n for n in itertools.count() if n not in folder.parts)
                if place != part:
                    is_over = _seek(records, folder, part)
                place = part + 1
                is_over = is_over or _write_part(folder, parts, part, records, at_once)


def _write_part(
    folder: SaveFolder, parts: PartsWriter, part: int, records: LoaderIterator[Tree], at_once: int
) -> bool:
    """Writes a part; True if the stream is over."""
    first, stop = part * folder.part_records, (part + 1) * folder.part_records
    position = first
    while position < stop:
        found = list(itertools.islice(records, min(at_once, stop - position)))
        if not found:
            break
        positions = np.arange(position, position + len(found))
        parts.append(part, encoded_rows(Rows.of_records(found), positions), position)
        position += len(found)
    if position > first:
        folder.add(parts.finish(_json_state(records)))
    return position < stop


def _seek(records: LoaderIterator[Tree], folder: SaveFolder, part: int) -> bool:
    """Goes to the first record of a part; True if the stream is over before it."""
    before = folder.parts[part - 1]
    if before.part.records < folder.part_records:
        return True
    if isinstance(before.state, dict):
        records.set_state(before.state)
        return False
    for _ in itertools.islice(records, part * folder.part_records - records.step):
        pass
    return False


def _json_state(records: LoaderIterator[Tree]) -> Json:
    """The state of a stream; None if it holds users' objects: resuming then skips records."""
    try:
        state: Json = json.loads(json.dumps(records.get_state()))
    except (TypeError, ValueError):
        return None
    return state
