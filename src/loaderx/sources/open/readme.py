"""The splits in the ``README.md`` of a dataset from the Hugging Face hub.

::

    ---
    configs:
    - config_name: default
      data_files:
      - split: train
        path: data/train-*
    ---

Only ``configs`` is read from that header, by PyYAML.  A damaged header with ``configs`` is an
error: if it were ignored, train and test could become one dataset.  Splits without matching files
are left out.

A header may be hostile.  PyYAML crashes on lists in a hundred thousand lists, so their depth is
checked first; and with aliases (``*name``) a short header can stand for a very long one, so nothing
is compared or copied as a whole, and the patterns are counted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from loaderx.errors import FileError, MissingPackageError
from loaderx.sources.files.paths import is_data, natural_order, plain_name
from loaderx.sources.format import Folder
from loaderx.sources.mapping import read_whole

Yaml: TypeAlias = "str | list[Yaml] | dict[str, Yaml]"

_NAME = "README.md"
_MOST_BYTES = 1 << 22
_HEADER = re.compile(r"\A(?:\ufeff)?---[ \t]*\n(.*?)^---[ \t]*$", re.S | re.M)
_SPLIT = re.compile(r"[\w.-]+")
_DEFAULT = "default"
_TRUE = ("true", "True", "TRUE")
_DEEPEST = 100  # lists and mappings in each other
_MOST_PATTERNS = 100_000


def readme_splits(folder: Folder, suffixes: tuple[str, ...]) -> dict[str, list[str]]:
    """The files of each split according to the README; empty if it has no splits.

    If there are several configurations, splits of those that are not the default are named
    ``config.split``.
    """
    if not folder.has(_NAME):
        return {}
    configs = list(_configs(folder))
    numbers = range(len(configs))
    defaults = [n for n in numbers if _is_default(configs[n]) or len(configs) == 1]
    defaults = defaults or [n for n in numbers if _value(configs[n], "config_name") == _DEFAULT]
    found: dict[str, list[str]] = {}
    count = 0
    for number, config in enumerate(configs):
        name = _value(config, "config_name")
        prefix = "" if number in defaults[:1] or not isinstance(name, str) else f"{name}."
        for split, patterns in _data_files(_value(config, "data_files")):
            count += 1 + len(patterns)
            if count > _MOST_PATTERNS:
                raise _refused(folder.join(_NAME), f"names more than {_MOST_PATTERNS:,} files")
            files = _matching(folder, patterns, suffixes)
            if files and _SPLIT.fullmatch(prefix + split):
                found.setdefault(prefix + split, []).extend(files)
    return found


def _configs(folder: Folder) -> Iterator[dict[str, Yaml]]:
    with folder.open(_NAME) as file:
        text = read_whole(file, _MOST_BYTES).decode("utf-8", "replace").replace("\r\n", "\n")
    header = _HEADER.match(text)
    told = _told(header[1], folder.join(_NAME)) if header and "configs" in header[1] else []
    for one in told if isinstance(told, list) else ():
        if isinstance(one, dict):
            yield one


def _value(told: dict[str, Yaml], key: str) -> Yaml | None:
    """A value of a mapping, or of the one under ``<<``, which the base loader does not resolve."""
    more = told.get("<<")
    return told.get(key, more.get(key) if isinstance(more, dict) else None)


def _merged(told: dict[str, Yaml]) -> dict[str, Yaml]:
    """A mapping merged with the one under ``<<``."""
    more = told.get("<<")
    return {**more, **told} if isinstance(more, dict) else told


def _is_default(config: dict[str, Yaml]) -> bool:
    told = _value(config, "default")
    return isinstance(told, str) and told in _TRUE


def _told(header: str, path: str) -> Yaml:
    """The value of ``configs`` in a header."""
    try:
        import yaml
    except ImportError as error:
        raise MissingPackageError(
            f"{path}: its header says how files belong to splits (`configs`), which needs the "
            "package PyYAML: pip install 'loaderx-jax[hub]'."
        ) from error
    # The base loader keeps all values as text: a configuration may be called `no` or `2024`.
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        depth = 0
        for event in yaml.parse(header, loader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                raise _refused(path, f"has more than {_DEEPEST} lists in each other")
        whole = yaml.load(header, loader)
    except yaml.YAMLError as error:
        raise _refused(path, f"is not YAML{_place(error, header)}") from error
    return whole.get("configs", []) if isinstance(whole, dict) else []


def _refused(path: str, reason: str) -> FileError:
    return FileError(
        f"{path}: its header says how files belong to splits (`configs`), and {reason}. Correct "
        'it, or name the files of a split yourself: Dataset.open("folder/train*").'
    )


def _place(error: Exception, header: str) -> str:
    """The line at which parsing a header fails."""
    mark = getattr(error, "problem_mark", None)
    lines = header.split("\n")
    if mark is None or mark.line >= len(lines):
        return ""
    # The header follows one line of dashes.
    return f": line {mark.line + 2}, {lines[mark.line].strip()!r}: {getattr(error, 'problem', '')}"


def _data_files(told: Yaml | None) -> Iterator[tuple[str, list[str]]]:
    """Splits and their patterns, in any form that the hub accepts."""
    if isinstance(told, dict):
        for split, patterns in _merged(told).items():
            yield split, _texts(patterns)
    elif isinstance(told, list) and any(isinstance(one, dict) for one in told):
        for one in told:
            named = _value(one, "split") if isinstance(one, dict) else None
            if isinstance(one, dict) and (named is None or isinstance(named, str)):
                yield "train" if named is None else named, _texts(_value(one, "path"))
    elif told:
        yield "train", _texts(told)


def _texts(told: Yaml | None) -> list[str]:
    several = told if isinstance(told, list) else [told]
    return [one for one in several if isinstance(one, str)]


def _matching(folder: Folder, patterns: Sequence[str], suffixes: tuple[str, ...]) -> list[str]:
    found = set()
    for pattern in patterns:
        if "://" in pattern or os.path.isabs(pattern) or ".." in pattern.split("/"):
            continue  # files outside the folder
        for file in folder.file_systems.of(folder.path).glob(folder.path, pattern):
            name = os.path.basename(file)
            if is_data(name) and plain_name(name).lower().endswith(suffixes):
                found.add(file)
    return sorted(found, key=natural_order)
