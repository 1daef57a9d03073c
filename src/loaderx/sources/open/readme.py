"""The splits that the ``README.md`` of a dataset from Hugging Face's hub names.

::

    ---
    configs:
    - config_name: default
      data_files:
      - split: train
        path: data/train-*
    ---

Only ``configs`` is read of that header: by PyYAML, where it is installed, or else by a parser of
the few forms that it usually takes.  What that cannot read is an error: were it left out, train and
test could become one dataset.  Splits that no file matches are left out.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from loaderx.errors import FileError
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


def readme_splits(folder: Folder, suffixes: tuple[str, ...]) -> dict[str, list[str]]:
    """The files of each split, as the README says; empty if it says nothing.

    Where there are several configurations, the splits of those that are not the default one are
    called ``config.split``.
    """
    if not folder.has(_NAME):
        return {}
    configs = list(_configs(folder))
    defaults = [one for one in configs if one.get("default") in _TRUE or len(configs) == 1]
    defaults = defaults or [one for one in configs if one.get("config_name") == _DEFAULT]
    found: dict[str, list[str]] = {}
    for config in configs:
        name = config.get("config_name")
        prefix = "" if config in defaults[:1] or not isinstance(name, str) else f"{name}."
        for split, patterns in _data_files(config.get("data_files")):
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
            yield _merged(one)


def _merged(told: dict[str, Yaml]) -> dict[str, Yaml]:
    """A mapping with the one that ``<<`` brings in; the plainest loader leaves it there."""
    more = told.get("<<")
    return {**more, **told} if isinstance(more, dict) else told


def _told(header: str, path: str) -> Yaml:
    """What ``configs`` says in a header."""
    try:
        import yaml
    except ImportError:
        how = "pip install pyyaml, which may understand it"
    else:
        how = "correct it"
        loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # which makes texts, and no objects
        with contextlib.suppress(yaml.YAMLError, RecursionError):
            whole = yaml.load(header, loader)
            return whole.get("configs", []) if isinstance(whole, dict) else []
    try:  # also patterns without quotes, which are no YAML
        return _parse(_block(header.splitlines(), "configs"))
    except (ValueError, IndexError, RecursionError) as error:
        line = f"{error}".strip()
        shown = f" at {line!r}" if isinstance(error, ValueError) and line else ""
        raise FileError(
            f"{path}: its header says how files belong to splits (`configs`), and is not "
            f"understood{shown}. Either {how}, or name the files of a split yourself: "
            'Dataset.open("folder/train*").'
        ) from error


def _data_files(told: Yaml | None) -> Iterator[tuple[str, list[str]]]:
    """Splits and their patterns, in any of the forms that the hub takes."""
    if isinstance(told, dict):
        for split, patterns in _merged(told).items():
            yield split, _texts(patterns)
    elif isinstance(told, list) and any(isinstance(one, dict) for one in told):
        for one in (_merged(one) for one in told if isinstance(one, dict)):
            named = one.get("split", "train")
            if isinstance(named, str):
                yield named, _texts(one.get("path", []))
    elif told:
        yield "train", _texts(told)


def _texts(told: Yaml) -> list[str]:
    several = told if isinstance(told, list) else [told]
    return [one for one in several if isinstance(one, str)]


def _matching(folder: Folder, patterns: Sequence[str], suffixes: tuple[str, ...]) -> list[str]:
    found = set()
    for pattern in patterns:
        if "://" in pattern or os.path.isabs(pattern) or ".." in pattern.split("/"):
            continue  # files that are elsewhere
        for file in folder.file_systems.of(folder.path).glob(folder.path, pattern):
            name = os.path.basename(file)
            if is_data(name) and plain_name(name).lower().endswith(suffixes):
                found.add(file)
    return sorted(found, key=natural_order)


# A little YAML ----------------------------------------------------------------------------------


def _block(lines: list[str], key: str) -> list[str]:
    """The lines below a key of the outermost level."""
    named = re.compile(rf"(\{{.*)?[\"']?{key}[\"']?\s*:")
    start = next((at for at, line in enumerate(lines) if named.match(line)), None)
    if start is None:
        return []
    if lines[start].rstrip() != f"{key}:":  # in another form
        raise ValueError(lines[start])
    found = []
    for line in lines[start + 1 :]:
        if line.strip() and not line.startswith((" ", "-", "#")):
            break
        if line.strip() and not line.lstrip().startswith("#"):
            found.append(line.rstrip())
    return found


def _parse(lines: list[str]) -> Yaml:
    """Lists, mappings and texts by their indentation; a `ValueError` for all else."""
    if not lines:
        return []
    indent = _indent(lines[0])
    if len(lines) == 1 and not re.match(r"\s*(- |-$|[^\"'\[]+:( |$))", lines[0]):
        return _scalar(lines[0])
    items = _cut(lines, indent)
    if lines[0].lstrip().startswith("-"):
        return [_parse([_without_dash(first), *rest]) for first, *rest in items]
    found: dict[str, Yaml] = {}
    for first, *rest in items:
        key, colon, value = first.partition(":")
        if not colon or (value.strip() and rest):
            raise ValueError(first)
        found[str(_scalar(key))] = _scalar(value) if value.strip() else _parse(rest)
    return found


def _cut(lines: list[str], indent: int) -> list[list[str]]:
    """The lines of each item: those with this indentation begin one.

    The list below a key may have the indentation of the key.
    """
    items: list[list[str]] = []
    is_list = lines[0].lstrip().startswith("-")
    for line in lines:
        is_dash = line.lstrip().startswith("-")
        if _indent(line) < indent:
            raise ValueError(line)
        if _indent(line) == indent and (is_list or not is_dash):
            items.append([line])
        else:
            items[-1].append(line)
    return items


def _without_dash(line: str) -> str:
    at = line.index("-")
    return line[:at] + " " + line[at + 1 :]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _scalar(text: str) -> Yaml:
    text = text.strip()
    if text.startswith("["):
        if not text.endswith("]"):
            raise ValueError(text)
        return [_scalar(one) for one in text[1:-1].split(",") if one.strip()]
    if text[:1] in ("'", '"'):
        if len(text) < 2 or text[-1] != text[0]:
            raise ValueError(text)
        return text[1:-1]
    if text[:1] in ("{", "&", "*", "|", ">", "!", "%", "@", "`"):
        if text.startswith("*") and not re.fullmatch(r"\*[\w-]+", text):
            return text  # no alias, but a pattern that was not quoted
        raise ValueError(text)
    return text.partition(" #")[0].strip()
