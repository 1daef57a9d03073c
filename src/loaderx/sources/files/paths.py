"""Resolves a user's path to a list of files or one folder.

A path may be a file, a folder, a pattern (``*``, ``?``, ``[...]``), have braces (``{000..099}``,
``{train,test}``), be the URL of one of these, or a list of them.  The files of a pattern are sorted
with numbers in their natural order, ``part-2`` before ``part-10``; a list keeps its order.
"""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeGuard, cast

from loaderx.errors import ArgumentError, ArgumentTypeError, FileError
from loaderx.sources.files.file_system import LOCAL_FILES, FileSystems
from loaderx.sources.remote.urls import check_url, file_name, is_url

if TYPE_CHECKING:
    from loaderx.sources.remote.fsspec_store import BroughtPath

PathLike: TypeAlias = str | os.PathLike[str]

_BRACES = re.compile(r"\{([^{}]*)\}")
_NUMBERS = re.compile(r"(\d+)\.\.(\d+)")
_DIGITS = re.compile(r"(\d+)")
_MOST_FILES = 1_000_000
_SEPARATORS = re.compile(r"[/\\]")
_LEADS_OUT = re.compile(r"[/\\]|[A-Za-z]:" + ("" if os.name == "nt" else r"[/\\]"))
_SUFFIXES = {".gz": "", ".zst": "", ".zstd": "", ".tgz": ".tar"}
_SHARD = re.compile(r"-\d+-of-\d+$")  # as TensorFlow names them, after the suffix


class Found(NamedTuple):
    """One folder, or files."""

    folder: str | None
    files: list[str]


def natural_order(path: str) -> list[tuple[int, str]]:
    """A sorting key: runs of digits count as numbers.

    >>> sorted(["part-10", "part-2"], key=natural_order)
    ['part-2', 'part-10']
    """
    # Every second piece is a run of digits, so only pieces of the same kind are compared.
    return [
        (int(piece) if place % 2 else 0, piece) for place, piece in enumerate(_DIGITS.split(path))
    ]


def find(path: PathLike | Sequence[PathLike], files: FileSystems = LOCAL_FILES) -> Found:
    """The folder or the files that a path stands for."""
    if isinstance(path, (str, os.PathLike)) or _is_brought(path):
        patterns = [_text(path, files)]
    elif isinstance(path, (list, tuple)):
        patterns = [_text(one, files) for one in path]
        if not patterns:
            raise ArgumentError("`path` is an empty list: there is nothing to open.")
    else:
        raise ArgumentTypeError(
            f"`path` must be a path or a list of paths, got {type(path).__name__}. For objects "
            "in memory write Dataset.from_source(...) or Dataset.from_arrays(...)."
        )
    urls = [one for pattern in patterns if is_url(pattern) for one in expand_braces(pattern)]
    for url in urls:
        check_url(url)
    if len(urls) > 1:
        files.remote().look_at(urls)
    found = [one for pattern in patterns for one in _matching(pattern, files)]
    folders = [one for one in found if files.of(one).is_folder(one)]
    if not folders:
        return Found(None, found)
    if len(found) > 1:
        raise FileError(
            f"{folders[0]} is a folder: give one folder, or files. Several folders are given as a "
            "list that has nothing else."
        )
    return Found(found[0], [])


def listed_folders(path: object, files: FileSystems) -> list[str]:
    """The folders of a list of folders; empty for anything else."""
    texts = [_text(one, files) for one in path] if isinstance(path, (list, tuple)) else []
    for url in filter(is_url, texts):
        check_url(url)
    found = [one if is_url(one) else os.path.abspath(os.path.expanduser(one)) for one in texts]
    return found if all(files.of(one).is_folder(one) for one in found) else []


def _is_brought(path: object) -> TypeGuard[BroughtPath]:
    """True for a path of an fsspec file system: an ``OpenFile`` or a ``UPath``."""
    return hasattr(path, "fs") and hasattr(path, "path")


def _text(path: PathLike | BroughtPath, files: FileSystems) -> str:
    if _is_brought(path):
        return files.bring(path.fs, str(path.path))
    text = os.fspath(cast(PathLike, path))
    if not isinstance(text, str):
        raise ArgumentTypeError(f"`path` must be text, got {text!r}.")
    if not text:
        raise ArgumentError("`path` is empty.")
    return text


def _matching(pattern: str, files: FileSystems) -> Iterator[str]:
    """The files of a pattern as absolute paths.  A name that exists is no pattern."""
    if is_url(pattern):
        for one in expand_braces(pattern):
            yield from sorted(files.remote().matching(one), key=natural_order)
        return
    plain = os.path.abspath(os.path.expanduser(pattern))
    if os.path.exists(plain):
        yield plain
        return
    for one in expand_braces(plain):
        if os.path.exists(one):
            yield one
        elif glob.has_magic(one):
            matches = sorted(glob.glob(one, recursive=True), key=natural_order)
            chosen = [match for match in matches if not os.path.isdir(match)] or matches
            if not chosen:
                raise FileError(f"no file matches {one}.")
            yield from chosen
        else:
            raise missing(one)


def missing(path: str) -> FileError:
    """The error for a path that does not exist; it names a similar neighbour."""
    from difflib import get_close_matches  # slow to import, and rarely needed

    folder, name = os.path.split(path)
    try:
        names = os.listdir(folder or ".")
    except OSError:
        names = []
    packed = [one for one in names if one in (f"{name}.gz", f"{name}.zst")]
    alike = packed or get_close_matches(name, names, 1, cutoff=0.8)
    advice = f" Did you mean {os.path.join(folder, alike[0])}?" if alike else ""
    return FileError(f"there is no file or folder {path}.{advice}")


def expand_braces(pattern: str) -> list[str]:
    """All texts of a pattern with braces.

    >>> expand_braces("a-{08..10}.tar")
    ['a-08.tar', 'a-09.tar', 'a-10.tar']
    >>> expand_braces("{train,test}.npz")
    ['train.npz', 'test.npz']
    """
    pieces = _BRACES.split(pattern)
    choices = [[piece] if place % 2 == 0 else _choices(piece) for place, piece in enumerate(pieces)]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > _MOST_FILES:
        raise ArgumentError(f"{pattern} stands for {count} files, more than {_MOST_FILES}.")
    return ["".join(picked) for picked in itertools.product(*choices)]


def _choices(inside: str) -> list[str]:
    numbers = _NUMBERS.fullmatch(inside)
    if numbers is None:
        return inside.split(",") if "," in inside else ["{" + inside + "}"]
    first, last = numbers.groups()
    if int(last) - int(first) >= _MOST_FILES:
        raise ArgumentError(f"{{{inside}}} stands for more than {_MOST_FILES} files.")
    width = len(first) if first.startswith("0") else 0
    return [str(number).zfill(width) for number in range(int(first), int(last) + 1)]


def unpacked_name(path: str) -> str:
    """The name of a file without the suffix of its compression.

    >>> unpacked_name("a.jsonl.gz"), unpacked_name("b.tgz")
    ('a.jsonl', 'b.tar')
    """
    name = file_name(path)
    stem, suffix = os.path.splitext(name)
    return stem + _SUFFIXES[suffix.lower()] if suffix.lower() in _SUFFIXES else name


def plain_name(path: str) -> str:
    """The name that shows a file's format: without compression and shard number.

    >>> plain_name("a.jsonl.gz"), plain_name("mnist-train.tfrecord-00000-of-00010")
    ('a.jsonl', 'mnist-train.tfrecord')
    """
    return _SHARD.sub("", unpacked_name(path))


def is_below(name: object) -> bool:
    """True if a name in a description leads to a place below its folder.

    Links in the folder may lead elsewhere: the user has put them there.

    >>> [is_below(name) for name in ("a/b.npy", "../b", "a/../../b", "/b", "C:\\\\b", "s3://b", "")]
    [True, False, False, False, False, False, False]
    """
    if not isinstance(name, str) or _LEADS_OUT.match(name) or is_url(name) or "\0" in name:
        return False
    parts = set(_SEPARATORS.split(name))
    return ".." not in parts and bool(parts - {"", "."})


def below(folder: str, name: object) -> str:
    """The path for a name in a description, which must lie below the folder."""
    if not is_below(name):
        raise FileError(
            f"a description in {folder} has {name!r:.100} where the name of a file or folder below "
            "it is expected: it must not lead elsewhere."
        )
    return os.path.join(folder, str(name))


def is_data(name: str) -> bool:
    """True for the name of data, False for a mark or a hidden file (``_SUCCESS``, ``.crc``)."""
    return not name.startswith((".", "_"))
