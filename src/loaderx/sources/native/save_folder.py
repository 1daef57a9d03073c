"""A folder that a dataset is being saved into, with journals so that a later run can resume.

Until all is done there is a journal beside the parts: a line that identifies the dataset, and one
for each part, with the sizes of its files and the type of its records.  A part is written under
another name, which its line has, too.  The line is written when the files are on disk, and then the
part gets its name.  A part with a line is complete under one of its names; all others are removed
and made again.  A truncated last line is ignored.

Several processes may save one dataset, a shard each: some consecutive parts, with a journal of its
own (`save_journal`).  The last of them joins the parts of all.

A folder behind a URL has an object with its line beside each part, in place of a journal, and no
part of it ever gets another name (`SaveBucket`).

A folder that ``.cache(path)`` fills has a subfolder for that until then (`row_folder`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from loaderx.errors import ArgumentError, ArgumentTypeError, FileError
from loaderx.frozen import Frozen
from loaderx.sources.cache.folder import Json, cache_folder
from loaderx.sources.columns.data import ColumnType
from loaderx.sources.files.arrays import open_npy
from loaderx.sources.mapping import reading
from loaderx.sources.native.layout import (
    MARK,
    VALUE,
    Description,
    Part,
    RecordKind,
    described,
    part_json,
    part_of,
    read_description,
    sync_folder,
    type_json,
    type_of,
    write_description,
)
from loaderx.sources.native.save_journal import (
    JOURNAL,
    OWN,
    WHOLE,
    BucketJournal,
    Journal,
    Line,
    Shard,
    is_journal,
    remove_journals,
)
from loaderx.sources.native.writer import PartWriter, has_columns, publish, remove_left, workspace
from loaderx.sources.remote.bucket import Bucket
from loaderx.sources.remote.store import at_once
from loaderx.sources.remote.urls import check_url, is_url, public_url, scheme_of

FILLING = ".filling"
_PART = re.compile(r"part-(\d{5,})(-[0-9a-f]{16}|\.[0-9a-f]+\.tmp)?")
_BEGUN = re.compile(rf"{OWN}|part-\d{{5,}}-[0-9a-f]{{16}}")
_OWN = re.compile(rf"{_PART.pattern}|loaderx\.json(\.[0-9a-f]+\.tmp)?|{OWN}|\.filling")


class SavedPart(Frozen):
    """A part that is on disk, and what its line in a journal says."""

    part: Part
    kind: ColumnType  # of its records
    state: Json  # of the stream after it; None for a dataset that is read by index
    temporary: str  # the name under which it was written

    @property
    def number(self) -> int:
        return int(self.part.name.split("-")[1])  # a digest follows in a bucket

    def line(self) -> Line:
        return {
            **part_json(self.part),
            "type": type_json(self.kind),
            "state": self.state,
            "temporary": self.temporary,
        }


def saved_part(line: Line) -> SavedPart:
    """A part from its line."""
    told, temporary = line["type"], line["temporary"]
    assert isinstance(told, dict)
    assert isinstance(temporary, str)
    if not _PART.fullmatch(temporary):
        raise ValueError(f"a part has the name {temporary!r:.100}")
    return SavedPart(part_of(line), type_of(told), line["state"], temporary)


class SaveFolder:
    """The folder, while no other process may write these parts of it.

    A process that has the journal of a shard sees the parts of that shard, one with the journal of
    the folder all of them.  ``shards``: by how many processes the dataset is saved.
    """

    def __init__(
        self,
        journal: Journal,
        made_by: Json,
        part_records: int,
        *,
        records: int = 0,
        shards: int = 1,
    ) -> None:
        self.folder, self._journal = journal.folder, journal
        self.parts: dict[int, SavedPart] = {}
        begun: Line = {"made_by": made_by, "part_records": part_records, "shards": shards}
        with _damage_told(self.folder):
            lines = journal.lines()
            begun_by = list(self._begun_by(lines))
        for other in begun_by:
            if other["made_by"] != made_by:
                raise another_dataset(self.folder, "was begun with", other["made_by"], made_by)
            if other["shards"] != shards:
                raise _in_other_shards(self.folder, int(str(other["shards"])))
            if other["part_records"] != begun_by[0]["part_records"]:
                raise FileError(
                    f"the shards of {self.folder} have parts of {other['part_records']} and "
                    f"{begun_by[0]['part_records']} records: they were saved with different "
                    "`part_bytes`. Remove it, and save all shards alike."
                )
            begun = other
        self.part_records = int(str(begun["part_records"]))
        self.numbers = shard_of(-(-records // self.part_records), journal.shard)
        with _damage_told(self.folder):
            self._find_parts(lines)
        if not self.parts or len(lines.get(journal.name, ())) < 2:
            journal.begin(begun)

    def _begun_by(self, journals: dict[str, list[Line]]) -> Iterator[Line]:
        """The first lines of the journals that have parts."""
        if not any(map(_PART.fullmatch, _entries(self.folder))):
            return
        for name, lines in journals.items():
            if len(lines) > 1:
                with reading(os.path.join(self.folder, name)):
                    yield {key: lines[0][key] for key in ("made_by", "part_records", "shards")}

    def _find_parts(self, journals: dict[str, list[Line]]) -> None:
        """Finds the parts that are complete, and gives them their names."""
        for name, lines in journals.items():
            with reading(os.path.join(self.folder, name)):
                found = [saved_part(line) for line in lines[1:]]
            for one in filter(self._is_own, found):  # one that is written again has a second line
                if self._is_whole(one, one.temporary):
                    publish(self.folder, one.temporary, one.part.name)
                if self._is_whole(one, one.part.name):
                    self.parts[one.number] = one

    def _is_own(self, part: SavedPart) -> bool:
        return self._journal.shard == WHOLE or part.number in self.numbers

    def _is_whole(self, saved: SavedPart, name: str) -> bool:
        """True if the files have the sizes and headers that were written."""
        place, files = os.path.join(self.folder, name), dict(saved.part.files)
        try:
            names = os.listdir(place)
            if {name: os.path.getsize(os.path.join(place, name)) for name in names} != files:
                return False
            return has_columns(place, columns_of(saved.kind)[1], saved.part.records)
        except (OSError, FileError):
            return False

    def remove_unfinished(self) -> None:
        """Removes what an earlier run, or a worker that was given up, has left."""
        kept = {FILLING, MARK, *(one.part.name for one in self.parts.values())}
        for name in set(os.listdir(self.folder)) - kept:
            part, place = _PART.fullmatch(name), os.path.join(self.folder, name)
            is_own = int(part[1]) in self.numbers if part else False
            if self._journal.shard != WHOLE and not is_own:
                continue  # another process may be writing it
            if os.path.isdir(place) and not os.path.islink(place):
                shutil.rmtree(place, ignore_errors=name.endswith(".tmp"))
            elif not re.fullmatch(OWN, name):
                with contextlib.suppress(FileNotFoundError):  # a thread that is stopping removed it
                    os.unlink(place)

    @property
    def records(self) -> int:
        """How many records are there."""
        return sum(one.part.records for one in self.parts.values())

    # Writing ----------------------------------------------------------------------------------

    def add(self, saved: SavedPart) -> None:
        """Completes a part that was written."""
        self._journal.append(saved.line())
        publish(self.folder, saved.temporary, saved.part.name)
        self.parts[saved.number] = saved

    @contextlib.contextmanager
    def local(self, part: Part, *names: str) -> Iterator[str]:
        """A folder of this machine that has these files of a part, or all."""
        yield os.path.join(self.folder, part.name)

    def nulls(self, name: str) -> int:
        """How many values are missing, by the files of this name."""

        def missing(saved: SavedPart) -> int:
            with self.local(saved.part, name) as place:
                return int((~open_npy(os.path.join(place, name))).sum())

        return sum(at_once(missing, [*self.parts.values()]))

    def widen(self, number: int, kind: ColumnType) -> None:
        """Writes a part again, with a wider type."""
        old, columns = self.parts[number], columns_of(kind)[1]
        with self.local(old.part) as place, PartWriter(self.folder, number, columns) as writer:
            writer.append_files(place, columns_of(old.kind)[1])
            self.add(SavedPart(writer.finish(), kind, old.state, writer.temporary))

    def finish(self, description: Description) -> None:
        """Makes the folder complete."""
        self._check_whole()
        self.remove_unfinished()
        write_description(self.folder, description)
        remove_journals(self.folder)
        sync_folder(self.folder)

    def _check_whole(self) -> None:
        for one in self.parts.values():
            if not self._is_whole(one, one.part.name):
                raise FileError(
                    f"{os.path.join(self.folder, one.part.name)} was changed while it was being "
                    "saved. Save again: what is whole is kept."
                )


class SaveBucket(SaveFolder):
    """A folder behind a URL, into which any number of processes may save the dataset.

    A part is complete when its line is there.  Its name has a digest of its content, so what one
    process puts is never overwritten with anything else.  Nothing is removed before the folder is
    complete: what killed processes have left is then put again, or not named by ``loaderx.json``.
    """

    _journal: BucketJournal

    def _is_whole(self, saved: SavedPart, name: str) -> bool:
        have, files = self._journal.bucket.files, saved.part.files
        return all(have.get(f"{name}/{file}") == size for file, size in files.items())

    def remove_unfinished(self) -> None:
        remove_left()  # by workers that were stopped

    @contextlib.contextmanager
    def local(self, part: Part, *names: str) -> Iterator[str]:
        place = workspace()
        try:
            for name in names or part.files:
                Path(place, name).write_bytes(self._journal.bucket.read(f"{part.name}/{name}"))
            yield place
        finally:
            shutil.rmtree(place)

    def finish(self, description: Description) -> None:
        self._journal.bucket.look()
        self._check_whole()
        # Another process may be first: with this dataset, or with another one, which is refused.
        self._journal.bucket.put(MARK, described(description), is_new=True)
        is_complete(self.folder, description.made_by)


def shard_of(parts: int, shard: Shard) -> range:
    """The parts of a shard: consecutive ones, so that what they are read from is read in order.

    >>> [shard_of(5, (index, 3)) for index in range(3)]
    [range(0, 1), range(1, 3), range(3, 5)]
    """
    index, count = shard
    return range(parts * index // count, parts * (index + 1) // count)


@contextlib.contextmanager
def _damage_told(folder: str) -> Iterator[None]:
    try:
        yield
    except FileError as error:
        raise FileError(f"{error}. Remove {folder}, and save again.") from error


def columns_of(kind: ColumnType) -> tuple[RecordKind, dict[str, ColumnType]]:
    """How records of a type are stored: their kind and their columns."""
    if kind.kind == "struct":
        return "dict", dict(kind.fields)
    return ("tuple", dict(kind.fields)) if kind.kind == "tuple" else ("value", {VALUE: kind})


def check_folder(folder: str, *, fills: bool = False) -> None:
    """Refuses a folder that has other files.

    One that ``.cache(path)`` has begun to fill is accepted only with ``fills``.
    """
    if is_url(folder):
        _check_writable(folder, fills=fills)
    names = _entries(folder)
    others = [name for name in names if not _OWN.fullmatch(name)]
    if FILLING in names and MARK not in names and not fills:
        raise FileError(
            f"cannot save into {folder}: .cache(path) has begun to fill it. Continue with that, "
            "or remove it."
        )
    is_begun = {MARK, FILLING} & set(names) or any(map(_BEGUN.fullmatch, names))
    if others or (names and not is_begun):
        raise FileError(
            f"cannot save into {folder}: it has other files, such as {(others or names)[0]}. Give "
            "a folder that is new or empty."
        )


def _entries(folder: str) -> list[str]:
    if is_url(folder):
        return sorted(Bucket(folder).entries())
    try:
        return sorted(os.listdir(folder)) if os.path.exists(folder) else []
    except OSError as error:
        raise FileError(f"cannot save into {folder}: {error}.") from error


def folder_path(name: str, given: object) -> str:
    """The folder given as the argument ``name``."""
    if not isinstance(given, (str, os.PathLike)):
        raise ArgumentTypeError(f"`{name}` must be a path, got {given!r}.")
    path = os.fspath(given)
    return path.rstrip("/") if is_url(path) else os.path.abspath(os.path.expanduser(path))


def _check_writable(url: str, *, fills: bool) -> None:
    """Refuses URLs at which nothing can be saved."""
    check_url(url)
    if fills or scheme_of(url) in ("http", "https", "hf"):
        why = ".cache(path) fills folders only" if fills else "loaderx only reads from there"
        raise ArgumentError(
            f"cannot save into {public_url(url)}: {why}. Give a folder, and copy it there when it "
            "is complete; or write .save(url) with the URL of a bucket (s3, gs, az)."
        )


def is_complete(folder: str, made_by: Json) -> bool:
    """True if the folder holds this dataset, complete.  One that holds another is refused."""
    found = saved_description(folder)
    if found is None:
        return False
    if found.made_by != made_by:
        raise another_dataset(folder, "has", found.made_by, made_by)
    # A run may have been killed between its last steps, or the folder may be read-only.
    if is_url(folder):
        _remove_others(Bucket(folder), {MARK, *(part.name for part in found.parts)})
        return True
    with contextlib.suppress(OSError):
        remove_journals(folder)
    shutil.rmtree(os.path.join(folder, FILLING), ignore_errors=True)
    return True


def saved_description(folder: str) -> Description | None:
    """The description of a folder; None if it is not complete."""
    is_there = MARK in _entries(folder)
    return read_description(folder, cache_folder(None).files) if is_there else None


def _remove_others(bucket: Bucket, kept: set[str]) -> None:
    """Removes what is needed only until the folder is complete."""
    if set(bucket.entries()) - kept:
        bucket.look()
        others = [(name, name.partition("/")[0]) for name in bucket.files]
        bucket.remove([name for name, top in others if top not in kept and _OWN.fullmatch(top)])


def check_complete(folder: str, names: Sequence[str]) -> None:
    """Refuses to read a folder into which records are still written; ``names`` are in it."""
    has_parts = any(name.startswith("part-") for name in names)
    if f"{FILLING}/" in names:
        raise FileError(
            f"{folder} is not complete: .cache(path) has begun to fill it, and has not seen all "
            "records yet."
        )
    if has_parts and any(map(is_journal, names)):
        raise FileError(f"{folder} is not complete: save again to resume.")


def check_begun(folder: str, made_by: Json) -> None:
    """Refuses a folder into which another dataset is being saved."""
    begun_by = made_by
    path = os.path.join(folder, JOURNAL)
    unread = contextlib.suppress(OSError, ValueError, TypeError, KeyError, StopIteration)
    with unread, open(path, "rb") as journal:
        begun_by = json.loads(next(journal))["made_by"]
    if begun_by != made_by and any(name.startswith("part-") for name in os.listdir(folder)):
        raise another_dataset(folder, "was begun with", begun_by, made_by)


def another_dataset(folder: str, how: str, told: Json, made_by: Json) -> FileError:
    """The error for a folder that belongs to another dataset."""
    old, new = (one if isinstance(one, dict) else {} for one in (told, made_by))
    differ = [name for name in new if old.get(name) != new[name]]
    return FileError(
        f"{folder} {how} another dataset, which has other {' and other '.join(differ)}. Give "
        "another folder, or remove this one."
    )


def _in_other_shards(folder: str, count: int) -> FileError:
    """The error for a folder that is being saved in so many shards, and not as was asked."""
    how = "without `shard`" if count == 1 else f"with shard=(0, {count}) to ({count - 1}, {count})"
    return FileError(
        f"{folder} was begun {how}: go on like that, or remove it. Any machine may save any shard."
    )
