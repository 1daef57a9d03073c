"""A folder that a dataset is being saved into, with a journal so that a later run can resume.

Until all is done there is a ``saving.jsonl`` beside the parts: a line that identifies the dataset,
and one for each part, with the sizes of its files and the type of its records.  A line is written
when the files are on disk, and then the part gets its name: a part with both is complete, and all
others are removed and made again.  A truncated last line is ignored.

A folder that ``.cache(path)`` fills has a subfolder for that until then (`row_folder`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from loaderx.errors import ArgumentTypeError, FileError
from loaderx.frozen import Frozen
from loaderx.sources.cache.folder import Json
from loaderx.sources.cache.owners import is_dead, own_mark
from loaderx.sources.columns.data import ColumnType
from loaderx.sources.mapping import reading
from loaderx.sources.native.layout import (
    MARK,
    VALUE,
    Description,
    Part,
    RecordKind,
    part_json,
    part_of,
    read_description,
    sync_folder,
    type_json,
    type_of,
    write_description,
)
from loaderx.sources.native.writer import PartWriter, has_columns
from loaderx.sources.remote.private_files import try_lock

JOURNAL = "saving.jsonl"
LOCK_FILE = "saving.lock"  # if the file system has no locks
FILLING = ".filling"
_OWN = re.compile(
    r"part-\d{5,}(\.[0-9a-f]+\.tmp)?|loaderx\.json(\.[0-9a-f]+\.tmp)?"
    r"|saving\.jsonl|saving\.lock|\.filling"
)


class FolderInUseError(FileError):
    """Another process is saving into a folder."""


class SavedPart(Frozen):
    """A part that is complete."""

    part: Part
    kind: ColumnType  # of its records
    state: Json  # of the stream after it; None for a dataset that is read by index


class SaveFolder:
    """The folder, while no other process may write to it."""

    def __init__(self, folder: str, journal: BinaryIO, made_by: Json, part_records: int) -> None:
        self.folder, self._journal = folder, journal
        self.part_records = part_records
        self.parts: dict[int, SavedPart] = {}
        try:
            begun_by = self._find_parts()
        except FileError as error:
            raise FileError(f"{error}. Remove {folder}, and save again.") from error
        if not self.parts:
            journal.truncate(0)
            self._append({"made_by": made_by, "part_records": part_records})
            sync_folder(folder)
        elif begun_by != made_by:
            raise another_dataset(folder, "was begun with", begun_by, made_by)
        self._remove_unfinished()

    def _find_parts(self) -> Json:
        """Finds the parts that an earlier run completed; returns the dataset that it was saving."""
        lines = self._lines()
        if not lines:
            return None
        with reading(os.path.join(self.folder, JOURNAL)):
            begun_by, part_records = lines[0]["made_by"], int(str(lines[0]["part_records"]))
            for line in lines[1:]:  # a part that is written again has a second line
                told = line["type"]
                assert isinstance(told, dict)
                one = SavedPart(part_of(line), type_of(told), line["state"])
                if self._is_whole(one):
                    self.parts[int(one.part.name.removeprefix("part-"))] = one
        if self.parts:
            self.part_records = part_records
        return begun_by

    def _lines(self) -> list[dict[str, Json]]:
        """The lines of an earlier run; truncates the journal after the last whole one."""
        content = self._journal.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._journal.truncate(len(whole))
        with reading(os.path.join(self.folder, JOURNAL)):
            return [dict(json.loads(line)) for line in whole.splitlines()]

    def _is_whole(self, saved: SavedPart) -> bool:
        """True if the files have the sizes and headers that were written."""
        place, files = os.path.join(self.folder, saved.part.name), dict(saved.part.files)
        try:
            names = os.listdir(place)
            if {name: os.path.getsize(os.path.join(place, name)) for name in names} != files:
                return False
            return has_columns(place, columns_of(saved.kind)[1], saved.part.records)
        except (OSError, FileError):
            return False

    def _remove_unfinished(self) -> None:
        kept = {JOURNAL, LOCK_FILE, FILLING, *(one.part.name for one in self.parts.values())}
        for name in set(os.listdir(self.folder)) - kept:
            place = os.path.join(self.folder, name)
            if os.path.isdir(place) and not os.path.islink(place):
                shutil.rmtree(place)
            else:
                os.unlink(place)

    # Writing ----------------------------------------------------------------------------------

    def writer(self, number: int, kind: ColumnType) -> PartWriter:
        """A writer for a part whose records have this type."""
        return PartWriter(self.folder, number, columns_of(kind)[1])

    def add(self, number: int, writer: PartWriter, kind: ColumnType, state: Json) -> None:
        """Completes a part."""
        done = SavedPart(writer.finish(), kind, state)
        line = part_json(done.part)
        self._append({**line, "type": type_json(done.kind), "state": done.state})
        writer.publish()
        self.parts[number] = done

    def widen(self, number: int, kind: ColumnType) -> None:
        """Writes a part again, with a wider type."""
        old = self.parts[number]
        with self.writer(number, kind) as writer:
            place = os.path.join(self.folder, old.part.name)
            writer.append_files(place, columns_of(old.kind)[1])
            self.add(number, writer, kind, old.state)

    def finish(self, description: Description) -> None:
        """Makes the folder complete."""
        for one in self.parts.values():
            if not self._is_whole(one):
                raise FileError(
                    f"{os.path.join(self.folder, one.part.name)} was changed while it was being "
                    "saved. Save again: what is whole is kept."
                )
        write_description(self.folder, description)
        os.unlink(os.path.join(self.folder, JOURNAL))
        sync_folder(self.folder)

    def _append(self, line: Json) -> None:
        self._journal.seek(0, os.SEEK_END)
        self._journal.write(json.dumps(line).encode() + b"\n")
        self._journal.flush()
        os.fsync(self._journal.fileno())


def columns_of(kind: ColumnType) -> tuple[RecordKind, dict[str, ColumnType]]:
    """How records of a type are stored: their kind and their columns."""
    if kind.kind == "struct":
        return "dict", dict(kind.fields)
    return ("tuple", dict(kind.fields)) if kind.kind == "tuple" else ("value", {VALUE: kind})


def check_folder(folder: str, *, fills: bool = False) -> None:
    """Refuses a folder that has other files.

    One that ``.cache(path)`` has begun to fill is accepted only with ``fills``.
    """
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return
    except OSError as error:
        raise FileError(f"cannot save into {folder}: {error}.") from error
    others = [name for name in names if not _OWN.fullmatch(name)]
    if FILLING in names and MARK not in names and not fills:
        raise FileError(
            f"cannot save into {folder}: .cache(path) has begun to fill it. Continue with that, "
            "or remove it."
        )
    if others or (names and not {MARK, JOURNAL, FILLING} & set(names)):
        raise FileError(
            f"cannot save into {folder}: it has other files, such as {(others or names)[0]}. Give "
            "a folder that is new or empty."
        )


def folder_path(name: str, given: object) -> str:
    """The folder given as the argument ``name``."""
    if not isinstance(given, (str, os.PathLike)):
        raise ArgumentTypeError(f"`{name}` must be a path, got {given!r}.")
    return os.path.abspath(os.path.expanduser(os.fspath(given)))


def is_complete(folder: str, made_by: Json) -> bool:
    """True if the folder holds this dataset, complete.  One that holds another is refused."""
    if not os.path.exists(os.path.join(folder, MARK)):
        return False
    found = read_description(folder)
    if found.made_by != made_by:
        raise another_dataset(folder, "has", found.made_by, made_by)
    # A run may have been killed between its last steps, or the folder may be read-only.
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(folder, JOURNAL))
    shutil.rmtree(os.path.join(folder, FILLING), ignore_errors=True)
    return True


def check_complete(folder: str, names: Sequence[str]) -> None:
    """Refuses to read a folder into which records are still written; ``names`` are in it."""
    has_parts = any(name.startswith("part-") for name in names)
    if f"{FILLING}/" in names:
        raise FileError(
            f"{folder} is not complete: .cache(path) has begun to fill it, and has not seen all "
            "records yet."
        )
    if JOURNAL in names and has_parts:
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


@contextlib.contextmanager
def open_journal(folder: str) -> Iterator[BinaryIO]:
    """The journal of a folder, created if needed and locked against other processes."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, JOURNAL), "a+b") as journal, _locked(journal, folder):
        journal.seek(0)
        yield journal


@contextlib.contextmanager
def _locked(journal: BinaryIO, folder: str) -> Iterator[None]:
    """The lock of a folder; a lock file if the file system has no locks."""
    try:
        has_lock: bool | None = try_lock(journal.fileno())
    except OSError:  # Lustre without flock, some NFS
        has_lock = None
    if has_lock is False:
        raise FolderInUseError(f"another process is saving into {folder}.")
    with contextlib.nullcontext() if has_lock else _lock_file(folder):
        yield


@contextlib.contextmanager
def _lock_file(folder: str) -> Iterator[None]:
    path = os.path.join(folder, LOCK_FILE)
    while True:
        try:
            held = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            break
        except FileExistsError:
            if not _remove_left(path):
                raise FolderInUseError(
                    f"another process is saving into {folder}. If none does, remove {path}: the "
                    "file system has no locks, and of a process on another machine it is not known "
                    "whether it still lives."
                ) from None
    with open(held, "w", encoding="ascii") as file:
        file.write(own_mark())
    try:
        yield
    finally:
        os.unlink(path)


def _remove_left(path: str) -> bool:
    """Removes the lock file of a process that has died."""
    with contextlib.suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
        if not is_dead(file.read()):
            return False
        os.unlink(path)
    return not os.path.exists(path)


def another_dataset(folder: str, how: str, told: Json, made_by: Json) -> FileError:
    """The error for a folder that belongs to another dataset."""
    old, new = (one if isinstance(one, dict) else {} for one in (told, made_by))
    differ = [name for name in new if old.get(name) != new[name]]
    return FileError(
        f"{folder} {how} another dataset, which has other {' and other '.join(differ)}. Give "
        "another folder, or remove this one."
    )
