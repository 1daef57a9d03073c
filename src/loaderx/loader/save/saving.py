"""`Dataset.save`: writes the records of a dataset to a folder in the native layout.

Workers turn some records at a time into columns; this process appends them to the current part, in
order.  So part k holds records k·m to (k+1)·m - 1 with any engine, and the next run keeps the parts
that a killed run completed (`save_folder`).

The type of a column is found as records come, and only grows wider: a part begins with the type of
all records so far, and at the end parts with a narrower type are written again.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import cast

import numpy as np

from loaderx.chain.node import Node
from loaderx.dataset import Dataset, SaveArguments
from loaderx.engines import Engine
from loaderx.engines.base import Measured, Session
from loaderx.errors import ArgumentTypeError, ChainError, FileError, check_int, warn_user
from loaderx.frozen import Frozen
from loaderx.loader.failures import FailureLog, failure_limit
from loaderx.loader.iterator import LoaderIterator
from loaderx.loader.loader import DataLoader, engine_of
from loaderx.loader.run import TaskRun
from loaderx.loader.save.sample import (
    LOOKED_AT,
    NO_RECORDS,
    made_by,
    read_sample,
    record_bytes,
)
from loaderx.loader.save.work import SaveWork, Steps, unpacked
from loaderx.loader.tasks.steps import StepTasks
from loaderx.memory import Pool
from loaderx.reading.context import ReadContext
from loaderx.reading.rows import Rows
from loaderx.reading.stored_rows import encoded_rows
from loaderx.sources.cache.folder import Json
from loaderx.sources.columns.record_columns import Encoded
from loaderx.sources.native.save_folder import (
    SaveFolder,
    check_folder,
    folder_path,
    is_complete,
    open_journal,
)
from loaderx.sources.native.save_parts import PartsWriter, check_images, finish
from loaderx.sources.progress import progress
from loaderx.tree import Tree

_STEP_BYTES, _STEP_RECORDS = 1 << 22, 1 << 13  # approximate limits of one step


class SaveOptions(Frozen):
    """The arguments of `Dataset.save`, checked."""

    part_bytes: int
    images: tuple[str, ...]
    engine: Engine


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
    )
    _check_chain(dataset._node)
    check_folder(place)
    try:
        kind = _StreamSaving if dataset._node.is_stream else _IndexSaving
        kind(dataset, place, options).save()
    except OSError as error:  # a full or read-only disk; errors of functions are RecordErrors
        raise FileError(
            f"cannot save into {place}: {error}. Finished parts are kept: save again to resume."
        ) from error


def _check_chain(node: Node) -> None:
    if node.batched:
        raise ChainError(
            "save writes records, and this dataset has batches: put .save(...) before .batch(...), "
            "or .unbatch() before it."
        )
    if not node.ends:
        raise ChainError("an endless dataset cannot be saved: limit it with .take(n).")


class _Saving:
    """Saves one dataset to a folder."""

    def __init__(self, dataset: Dataset[Tree], place: str, options: SaveOptions) -> None:
        self.dataset, self.node, self.place, self.options = dataset, dataset._node, place, options

    def save(self) -> None:
        sample, images = self._sample(), self.options.images
        check_images(sample.kind, images)
        told = made_by(self.node, sample, images)
        if is_complete(self.place, told):
            return
        size = record_bytes(sample)
        with open_journal(self.place) as journal:
            most = max(1, self.options.part_bytes // size)
            folder = SaveFolder(self.place, journal, told, most)
            at_once = max(1, min(_STEP_BYTES // size, _STEP_RECORDS, folder.part_records))
            what = f"saving into {self.place}"
            with (
                progress(what, self.node.length, "records") as shown,
                PartsWriter(folder, shown, uses_lines=True) as parts,
            ):
                self._write(parts, at_once)
            assert parts.kind is not None
            finish(folder, parts.kind, told, images, self.dataset.classes)

    def _sample(self) -> Encoded:
        """Some records as columns."""
        raise NotImplementedError

    def _write(self, parts: PartsWriter, at_once: int) -> None:
        """Writes the missing parts, ``at_once`` records at a time."""
        raise NotImplementedError


class _IndexSaving(_Saving):
    """A dataset that is read by index: workers make the columns."""

    def _sample(self) -> Encoded:
        return read_sample(self.node, ReadContext(Pool().lend))[1]

    def _write(self, parts: PartsWriter, at_once: int) -> None:
        length = self.node.length
        assert length is not None
        steps = Steps(length, parts.folder.part_records, at_once)
        work = SaveWork(self.node, steps)
        session = self.options.engine.session(work)
        failures = _Failures(self.node)
        try:
            for run in _runs(steps, set(parts.folder.parts)):
                self._run(session, work, run, parts, failures)
        finally:
            session.close()
        failures.warn(length)

    def _run(
        self,
        session: Session,
        work: SaveWork,
        numbers: range,
        parts: PartsWriter,
        failures: _Failures,
    ) -> None:
        steps = work.steps
        session.begin(len(numbers))
        run = work.ahead(TaskRun(session, work, StepTasks(session, numbers)), numbers)
        try:
            for step in numbers:
                element = run.next()
                if isinstance(element, Measured):
                    failures.add(element, step)
                    element = element.value
                part, first = steps.part_of(step), steps.bounds(step)[0]
                for piece in element:
                    found = unpacked(piece)
                    parts.append(part, found, first)
                    first += found.data.length
                del element, found, piece  # so that their memory can be reused
                if step + 1 == steps.of_part(part).stop:
                    parts.complete(part, None)
        finally:
            run.close()


def _runs(steps: Steps, done: set[int]) -> Iterator[range]:
    """The steps of missing parts, as ranges."""
    missing = [part for part in range(steps.parts) if part not in done]
    for _, group in itertools.groupby(enumerate(missing), lambda pair: pair[1] - pair[0]):
        parts = [part for _, part in group]
        yield range(steps.of_part(parts[0]).start, steps.of_part(parts[-1]).stop)


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

    def _write(self, parts: PartsWriter, at_once: int) -> None:
        folder, place, is_over = parts.folder, 0, False
        with DataLoader(self.dataset, engine=self.options.engine) as loader:
            records = iter(loader)
            while not is_over:
                part = next(n for n in itertools.count() if n not in folder.parts)
                if place != part:
                    is_over = _seek(records, folder, part)
                place = part + 1
                is_over = is_over or self._write_part(parts, part, records, at_once)

    def _write_part(
        self, parts: PartsWriter, part: int, records: LoaderIterator[Tree], at_once: int
    ) -> bool:
        """Writes a part; True if the stream is over."""
        size = parts.folder.part_records
        first, stop = part * size, (part + 1) * size
        position = first
        while position < stop:
            found = list(itertools.islice(records, min(at_once, stop - position)))
            if not found:
                break
            positions = np.arange(position, position + len(found))
            parts.append(part, encoded_rows(Rows.of_records(found), positions), position)
            position += len(found)
        if position > first:
            parts.complete(part, _json_state(records))
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
