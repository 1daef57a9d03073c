"""``loaderx info PATH``: format, splits, records, columns, classes, and what the cache holds."""

from __future__ import annotations

import contextlib
import sys

import numpy as np

from loaderx.commands.opened import Opened
from loaderx.errors import LoaderxError
from loaderx.sources import Source
from loaderx.sources.base import FileSource
from loaderx.sources.cache.entries import folder_bytes
from loaderx.tree import ArraySpec, flatten, spec_of

_MOST_CLASSES = 8
_MOST_COLUMNS = 60
_LOOKED_AT = 16  # records to read, where only they show the columns


def info(path: str, format: str | None = None, cache: str | None = None) -> bool:
    """Prints the facts about a path; False if a part of it cannot be opened."""
    opened = Opened(path, format, cache)
    _row("format", opened.format)
    is_good = True
    first: Source | None = None
    for name, found in opened.splits():
        if isinstance(found, LoaderxError):
            is_good = False
            _row("split" if name else "data", f"{name}  cannot be opened: {found}".strip())
            continue
        _row("split" if name else "records", _size(name, found))
        first = found if first is None else first
    if first is not None:
        is_good = _columns(first) and is_good
    _cache(opened)
    return is_good


def _size(name: str, source: Source) -> str:
    shards = source.shard_counts if isinstance(source, FileSource) else None
    told = f"{len(source):,} records" if name else f"{len(source):,}"
    if shards is not None and len(shards) > 1:
        told += f" in {len(shards):,} shards"
    return f"{name}  {told}" if name else told


def _columns(source: Source) -> bool:
    """Prints the columns; False if one of the first records cannot be read."""
    records, problem = _first_records(source)
    leaves = _specs(source, records)
    width = max(map(len, leaves), default=0)
    for number, (path, spec) in enumerate(leaves.items()):
        if number == _MOST_COLUMNS:
            _row("", f"... {len(leaves) - number} more")
            break
        classes = source.classes.get(path, ())
        shown = ", ".join(classes[:_MOST_CLASSES]) + (", ..." * (len(classes) > _MOST_CLASSES))
        told = f"  {len(classes)} classes: {shown}" if classes else ""
        _row("columns" if number == 0 else "", f"{path or '(record)':{width}}  {spec}{told}")
    if problem is not None:
        _row("damaged", problem)
    return problem is None


def _first_records(source: Source) -> tuple[list[object], str | None]:
    """The first records that can be read, and the problem of one that cannot."""
    indices = np.arange(min(1 if source.spec is not None else _LOOKED_AT, len(source)))
    with contextlib.suppress(Exception):
        return source.records(indices), None
    records, problem = [], None
    for index in indices.tolist():
        try:
            records += source.records(np.array([index]))
        except Exception as error:
            problem = problem or f"record {index} cannot be read: {error}"
    return records, problem


def _specs(source: Source, records: list[object]) -> dict[str, str]:
    """The spec of each leaf; axes that differ between the first records are None."""
    if source.spec is not None:
        return _by_path(source.spec, records)
    found: dict[str, str] = {}
    shapes: dict[str, ArraySpec] = {}
    empty: set[str] = set()  # paths with only empty lists so far: their dtype means nothing
    for record in records:
        leaves, structure = flatten(record)
        for path, leaf in zip(structure.paths(), leaves, strict=True):
            spec = _spec(leaf)
            if spec is None:
                found[path] = type(leaf).__name__
                continue
            is_empty = 0 in spec.shape
            if path in shapes and is_empty and path not in empty:
                spec = ArraySpec(spec.shape, shapes[path].dtype)
            if is_empty and path not in shapes:
                empty.add(path)
            elif not is_empty:
                empty.discard(path)
            shapes[path] = _common(shapes.get(path, spec), spec)
            found[path] = _named(shapes[path], leaf)
    return found


def _spec(leaf: object) -> ArraySpec | None:
    """The spec of a leaf; None if no array can be made of it, such as a number of many digits."""
    with contextlib.suppress(LoaderxError):
        spec: ArraySpec = spec_of(leaf)
        return spec
    return None


def _common(one: ArraySpec, two: ArraySpec) -> ArraySpec:
    """The spec of both, with None for axes that differ."""
    if len(one.shape) != len(two.shape):
        return two
    pairs = zip(one.shape, two.shape, strict=True)
    return ArraySpec(tuple(a if a == b else None for a, b in pairs), two.dtype)


def _by_path(spec: object, records: list[object]) -> dict[str, str]:
    leaves, structure = flatten(spec)
    values: list[object] = flatten(records[0])[0] if records else [None] * len(leaves)
    paired = zip(structure.paths(), leaves, values, strict=True)
    return {path: _named(leaf, value) for path, leaf, value in paired}


def _named(spec: ArraySpec, value: object) -> str:
    """A spec in users' words: objects are text or bytes."""
    if spec.dtype == object and isinstance(value, (str, bytes)):
        return type(value).__name__
    return repr(spec)


def _cache(opened: Opened) -> None:
    for kind, places in opened.cache.used.items():
        total = sum(folder_bytes(place) for place in places)
        if places:
            _row(kind, f"{total / 1e6:,.1f} MB in {opened.cache.folder}")


def _row(title: str, text: str) -> None:
    sys.stdout.write(f"{title:9}{text}\n")
