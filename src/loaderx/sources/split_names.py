"""Which split a file belongs to, told by its name, as Hugging Face's hub does it.

``train-00000-of-00004.parquet``, ``data/test.jsonl`` and ``validation/0001.tar`` say it; a folder
in which no file says so has no splits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from loaderx.sources.format import Folder
from loaderx.sources.ondisk.paths import is_data, natural_order, plain_name

_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SPLIT_OF = {word: split for split, words in _WORDS.items() for word in words}
_WORD = re.compile(r"[A-Za-z]+")
_DEEPEST = 4  # folders below the one that was given


def canonical_split(name: str) -> str:
    """The split that a name stands for by itself; other names stand for themselves.

    >>> canonical_split("val"), canonical_split("Training"), canonical_split("train2017")
    ('validation', 'train', 'train2017')
    """
    return _SPLIT_OF.get(name.lower(), name)


def folder_split(name: str) -> str:
    """The split that the name of a folder says and nothing else; "" if it says another thing.

    >>> folder_split("val"), folder_split("train2017"), folder_split("test_tubes")
    ('validation', 'train', '')
    """
    return _SPLIT_OF.get(name.lower().rstrip("0123456789").rstrip("-_"), "")


def in_order(splits: Iterable[str]) -> list[str]:
    """Names of splits in the order in which they are listed: train, validation, test, others."""
    given = list(splits)
    return [name for name in dict.fromkeys([*_WORDS, *given]) if name in given]


def split_files(folder: Folder, suffixes: tuple[str, ...]) -> dict[str, list[str]]:
    """The files of a folder with one of these suffixes, by split, in natural order."""
    found: dict[str, list[str]] = {}
    files = sorted(_files(folder, "", suffixes, _DEEPEST), key=natural_order)
    for name in files:
        found.setdefault(split_of(name), []).append(folder.join(name))
    if "" in found and len(found) > 1:  # some say it, some do not: then none is taken at its word
        return {"": [folder.join(name) for name in files]}
    return {name: found[name] for name in in_order(found)}


def _files(folder: Folder, inside: str, suffixes: tuple[str, ...], deepest: int) -> list[str]:
    found = [
        inside + name
        for name in folder.files
        if is_data(name) and plain_name(name).lower().endswith(suffixes)
    ]
    if deepest:
        for below in folder.folders:
            if is_data(below.name):
                found += _files(below, f"{inside}{below.name}/", suffixes, deepest - 1)
    return found


def split_of(name: str) -> str:
    """The split that a relative path names, in its file name or else in a folder; "" if none.

    >>> split_of("data/train-00000-of-00002.parquet"), split_of("dev/a.jsonl"), split_of("a.jsonl")
    ('train', 'validation', '')
    """
    for piece in reversed(name.split("/")):
        stem = piece.split(".")[0]
        for word in _WORD.findall(stem.lower()):
            if word in _SPLIT_OF:
                return _SPLIT_OF[word]
    return ""
