"""``loaderx convert SRC DST``: the records of files, saved once in the native layout."""

from __future__ import annotations

import sys

import numpy as np

from loaderx import Dataset, engines
from loaderx.errors import FileError, StackError
from loaderx.frozen import Frozen
from loaderx.sources.cache.folder import CacheFolder, cache_folder
from loaderx.sources.images import decode_image
from loaderx.sources.native.save_folder import folder_path, saved_description
from loaderx.tree import flatten


class Opening(Frozen):
    """How the files are opened."""

    path: str
    split: str | None
    columns: list[str] | None
    format: str | None
    cache: CacheFolder

    def open(self, *, decode: bool, columns: list[str] | None = None) -> Dataset[dict[str, object]]:
        return Dataset.open(
            self.path,
            split=self.split,
            columns=columns or self.columns,
            format=self.format,
            decode=decode,
            cache=self.cache,  # type: ignore[arg-type]
        )


def convert(
    source: str,
    target: str,
    *,
    split: str | None = None,
    columns: list[str] | None = None,
    format: str | None = None,
    cache: str | None = None,
    decode: bool = False,
    engine: str = "auto",
    workers: int | None = None,
    shard: tuple[int, int] | None = None,
) -> bool:
    """Saves what `Dataset.open` finds at ``source``, with images as they are in their files."""
    # Files that are decoded in blocks are read once, in order: no copy in the cache is needed.
    given = CacheFolder(cache_folder(cache).folder, makes_copies=False)
    opening = Opening(source, split, columns, format, given)
    dataset = opening.open(decode=True)
    images: list[str] = []
    if not decode:
        dataset, images = _with_encoded_images(opening, dataset)
    runs_on: object = engine
    if engine == "ray":  # has only a class, since most programs do without it
        runs_on, workers = getattr(engines, engine.capitalize())(num_workers=workers), None
    try:
        dataset.save(target, images=images, engine=runs_on, num_workers=workers, shard=shard)
    except StackError as error:
        raise StackError(f"{error} Or leave the column out, with --columns a,b,c.") from error
    _report(target, shard)
    return True


def _with_encoded_images(
    opening: Opening, decoded: Dataset[dict[str, object]]
) -> tuple[Dataset[dict[str, object]], list[str]]:
    """The dataset with the bytes of images in place of their pixels, and which leaves these are."""
    encoded = opening.open(decode=False)
    first, raw = decoded[0], encoded[0]
    if not isinstance(first, dict) or not isinstance(raw, dict) or first.keys() != raw.keys():
        return decoded, []
    images = [name for name in first if _is_image(first[name], raw[name])]
    others = [name for name in first if name not in images]
    if not images:
        return decoded, []
    if all(_are_equal(first[name], raw[name]) for name in others):
        return encoded, images
    parts = opening.open(decode=True, columns=others), opening.open(decode=False, columns=images)
    return Dataset.zip(parts).map(_joined), images


def _is_image(decoded: object, raw: object) -> bool:
    """Whether these are the pixels of that image."""
    if not isinstance(raw, bytes) or not isinstance(decoded, np.ndarray):
        return False
    try:
        return _are_equal(decode_image(raw), decoded)
    except FileError:
        return False


def _are_equal(one: object, two: object) -> bool:
    leaves, structure = flatten(one)
    others, other = flatten(two)
    return structure is other and all(map(_is_same, leaves, others))


def _is_same(one: object, two: object) -> bool:
    return type(one) is type(two) and bool(np.array_equal(one, two))  # type: ignore[arg-type]


def _joined(parts: tuple[dict[str, object], dict[str, object]]) -> dict[str, object]:
    return {**parts[0], **parts[1]}


def _report(target: str, shard: tuple[int, int] | None) -> None:
    found = saved_description(folder_path("folder", target))
    if found is None:
        assert shard is not None
        sys.stdout.write(f"shard {shard[0]}/{shard[1]} is saved, others are not yet: {target}\n")
        return
    nbytes = sum(size for part in found.parts for size in part.files.values())
    count = f"{len(found.parts):,} part{'s' if len(found.parts) != 1 else ''}"
    sys.stdout.write(f"{found.records:,} records, {nbytes / 1e6:,.1f} MB in {count}: {target}\n")
