"""The description of a file format: how `Dataset.open` recognises and opens it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import BinaryIO, Literal, TypeAlias, cast, get_args

from loaderx.errors import ArgumentError, ArgumentTypeError
from loaderx.frozen import Frozen
from loaderx.sources.base import Source
from loaderx.sources.cache.folder import CacheArgument, CacheFolder, Json, cache_folder
from loaderx.sources.decoding import DecodeArgument, Decoding, check_decode
from loaderx.sources.files.file_system import LOCAL_FILES, FileSystems
from loaderx.sources.files.paths import below

MissingWord: TypeAlias = Literal["error", "nan", "valid"]
MissingArgument: TypeAlias = "MissingWord | Mapping[str, MissingWord] | MissingWords"
"""The argument ``missing``: what becomes of missing values, of all columns or by column."""

_WORDS: tuple[str, ...] = get_args(MissingWord)


class MissingWords(Frozen):
    """What becomes of missing values that no ``fill`` replaces (`columns.gaps` does it).

    ``every`` is for the columns that have missing values.  A word that is given for a column by its
    name is for that column in any case, so that the records of all files are alike.
    """

    every: MissingWord = "error"
    by_column: Mapping[str, MissingWord] = {}

    @staticmethod
    def of(given: object) -> MissingWords:
        """The words of an argument, checked."""
        if isinstance(given, MissingWords):
            return given
        for word in given.values() if isinstance(given, Mapping) else [given]:
            if not isinstance(word, str) or word not in _WORDS:
                raise ArgumentError(
                    f"`missing` must be one of {', '.join(map(repr, _WORDS))}, or a dict of these "
                    f"by column, such as {{'age': 'nan'}}, got {given!r}."
                )
        if isinstance(given, Mapping):
            return MissingWords(by_column=dict(sorted(given.items())))
        return MissingWords(every=cast(MissingWord, given))

    @property
    def is_used(self) -> bool:
        return self.every != "error" or bool(self.by_column)

    def named(self, name: str) -> MissingWord | None:
        """The word for a column, or for a struct around it; None if neither is named."""
        while name not in self.by_column and "." in name:
            name = name.rpartition(".")[0]
        return self.by_column.get(name)

    def word(self, name: str) -> MissingWord:
        """The word for a column that has missing values."""
        return self.named(name) or self.every

    def told(self) -> Json:
        """What a copy depends on: the columns whose missing values are kept in it."""
        named: list[Json] = [n for n, word in self.by_column.items() if word != "error"]
        return [self.every != "error", named]


class OpenOptions(Frozen):
    """The options of `Dataset.open` that formats get."""

    columns: tuple[str, ...] | None
    decode: Decoding
    fill: Mapping[str, object]
    cache: CacheFolder
    version: int | str | None = None  # of formats that keep several
    missing: MissingWords = MissingWords()
    types: Mapping[str, object] = {}

    def keeps(self, name: str) -> bool:
        """True if the missing values of a column are kept as such."""
        return name not in self.fill and self.missing.word(name) != "error"

    @property
    def categories(self) -> list[str]:
        """The columns of text that become codes."""
        return sorted(name for name, one in self.types.items() if is_category(one))

    @property
    def needs_all(self) -> bool:
        """True if all records must be read before it is known what they are like."""
        return self.missing.every != "error" or bool(self.categories)

    def label(self, format: str) -> str:
        """The name of a format, with the options that change values and not their names."""
        told = [format]
        if self.missing.is_used:
            told.append(f"missing={self.missing.by_column or self.missing.every!r}")
        told += [f"{name}: category" for name in self.categories]
        return ", ".join(told)

    def copied(self) -> list[Json]:
        """What a copy in the cache folder depends on, besides files."""
        columns: Json = None if self.columns is None else list(self.columns)
        fill: Json = {name: repr(value) for name, value in sorted(self.fill.items())}
        more: Json = [self.missing.told(), [*self.categories]]
        is_new = self.missing.is_used or self.categories
        return [columns, fill, more] if is_new else [columns, fill]

    def check_types_are_categories(self, where: str) -> None:
        """Refuses other types for data that has types of its own."""
        for name, given in self.types.items():
            if not is_category(given):
                raise ArgumentError(
                    f"`types` says {given!r} for {name!r}, and the columns of {where} have types: "
                    'only "category" can be asked for. Convert the values in a .map().'
                )

    def check_names(self, have: list[str], where: str) -> None:
        """Refuses columns that do not exist."""
        check_named("fill", self.fill, have, where, ".")
        check_named("missing", self.missing.by_column, have, where, ".")
        check_named("types", self.types, have, where, "")

    def chosen(self, have: list[str], where: str, *, fill_known: bool = True) -> list[str]:
        """The columns to read, in the requested order; all by default.

        Without ``fill_known``, `fill` may name columns that do not exist.
        """
        if fill_known:
            self.check_names(have, where)
        if fill_known or self.columns is None:
            check_named("decode", self.decode.leaves, have, where)
        return have if self.columns is None else check_columns(self.columns, have, where)


def open_options(
    columns: Sequence[str] | None,
    decode: DecodeArgument,
    fill: Mapping[str, object] | None,
    cache: CacheArgument,
    missing: MissingArgument = "error",
    types: Mapping[str, object] | None = None,
    version: int | str | None = None,
) -> OpenOptions:
    """The options, checked as far as possible before the format is known."""
    if columns is not None:
        _check_names(columns)
    if fill is not None and not isinstance(fill, Mapping):
        raise ArgumentTypeError(
            f"`fill` must be a dict of values by column, such as {{'age': 0}}, got {fill!r}."
        )
    if version is not None and (isinstance(version, bool) or not isinstance(version, (int, str))):
        raise ArgumentTypeError(f"`version` must be a number or a tag, got {version!r}.")
    return OpenOptions(
        columns=None if columns is None else tuple(columns),
        decode=check_decode(decode),
        fill=dict(fill or {}),
        cache=cache_folder(cache),
        missing=MissingWords.of(missing),
        types=check_types(types),
        version=version,
    )


def is_category(given: object) -> bool:
    """True for the word in ``types``."""
    return isinstance(given, str) and given == "category"


def check_types(types: Mapping[str, object] | None) -> dict[str, object]:
    """The types that a user gives, by column."""
    if types is not None and not isinstance(types, Mapping):
        raise ArgumentTypeError(
            f"`types` must be a dict of dtypes by column, such as {{'id': 'int64'}}, got {types!r}."
        )
    return dict(types or {})


def _check_names(columns: Sequence[str]) -> None:
    if isinstance(columns, str):
        raise ArgumentTypeError(f"`columns` must be a list of names: write [{columns!r}].")
    if not isinstance(columns, Iterable):
        raise ArgumentTypeError(f"`columns` must be a list of names, got {columns!r}.")
    names = list(columns)
    if not names:
        raise ArgumentError("`columns` is empty: name the columns to read, or leave it out.")
    for name in names:
        if not isinstance(name, str):
            raise ArgumentTypeError(f"`columns` must be a list of names, and has {name!r} in it.")
    twice = first_twice(names)
    if twice is not None:
        raise ArgumentError(f"`columns` has {twice!r} twice.")


def first_twice(names: Iterable[str]) -> str | None:
    """The first repeated name; None if there is none."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def check_columns(columns: Sequence[str], have: Sequence[str], where: str) -> list[str]:
    """The requested columns, all of which must exist."""
    if isinstance(columns, str):
        raise ArgumentTypeError(f"`columns` must be a list of names: write [{columns!r}].")
    known = set(have)
    for name in columns:
        if name not in known:
            raise ArgumentError(f"{where} has no column {name!r}; it has {listed(name, have)}")
    return list(columns)


def check_named(
    argument: str, names: Iterable[str], have: Iterable[str], where: str, marks: str = "./"
) -> None:
    """Refuses names of columns that do not exist; ``marks`` may stand between those of fields."""
    known = set(have)
    for name in names:
        tops = {str(name).partition(mark)[0] for mark in marks}
        if name not in known and known.isdisjoint(tops):
            raise ArgumentError(
                f"`{argument}` names {name!r}, and {where} has {listed(name, have)}"
            )


def listed(name: str, have: Iterable[str]) -> str:
    """The names that exist, for the message on one that does not, with the one that is like it."""
    from difflib import get_close_matches  # slow to import, and rarely needed

    names = list(have)
    alike = get_close_matches(str(name), names, 1)
    return f"{', '.join(map(repr, names))}." + (f" Did you mean {alike[0]!r}?" if alike else "")


class Folder:
    """A folder, listed once for all formats that look at it."""

    def __init__(self, path: str, file_systems: FileSystems = LOCAL_FILES) -> None:
        self.path, self.file_systems = path, file_systems

    @cached_property
    def names(self) -> list[str]:
        """The names in it; those of folders end with a slash."""
        return self.file_systems.of(self.path).names(self.path)

    @cached_property
    def files(self) -> list[str]:
        return [name for name in self.names if not name.endswith("/")]

    @cached_property
    def folders(self) -> list[Folder]:
        """The folders in it."""
        return [self.folder(name[:-1]) for name in self.names if name.endswith("/")]

    @property
    def name(self) -> str:
        return os.path.basename(self.path.rstrip("/"))

    def has(self, name: str) -> bool:
        return name in self.files

    def join(self, name: object) -> str:
        """The path for a name, which must lie below the folder."""
        return below(self.path, name)

    def folder(self, name: str) -> Folder:
        return Folder(self.join(name), self.file_systems)

    def open(self, name: str) -> AbstractContextManager[BinaryIO]:
        """A file in it, opened for reading."""
        return self.file_systems.open(self.join(name))


OpenFiles: TypeAlias = Callable[[list[str], OpenOptions], Source]
"""Opens files of one format as one source."""

OpenSplit: TypeAlias = Callable[[], Source]

Splits: TypeAlias = Mapping[str, OpenSplit]
"""How each split is opened, by name; the name is empty if there are no splits."""


class FileFormat(Frozen):
    """A format whose files can be opened one by one, or many as shards of one dataset.

    ``open(files, options)`` returns one `Source` for all of the files; `mapped_arrays` makes such a
    function from one that finds the arrays in a single file.  A file is recognised by its first 512
    bytes, if ``is_head`` is given, and by its suffix.  ``splits(files, options)`` opens the splits
    that are inside of the files, if there are any.

    >>> from loaderx.sources import mapped_arrays
    >>> FileFormat("rows", (".rows",), mapped_arrays(lambda data, path: {"x": data}))
    FileFormat('rows', ('.rows',))
    """

    name: str
    suffixes: tuple[str, ...]  # in lower case, with the dot
    open: OpenFiles
    is_head: Callable[[bytes], bool] | None = None  # tests the first bytes; None: not used
    weak_suffixes: tuple[str, ...] = ()  # not data if the folder has data of other formats
    splits: Callable[[list[str], OpenOptions], Splits] | None = None  # inside of the files

    def __repr__(self) -> str:
        return f"FileFormat({self.name!r}, {self.suffixes!r})"


class FolderFormat(Frozen):
    """A format that is a folder with characteristic files."""

    name: str
    is_folder: Callable[[Folder], bool]
    splits: Callable[[Folder, OpenOptions], Splits]
    marks: str = ""  # the files that such a folder always has, for messages
