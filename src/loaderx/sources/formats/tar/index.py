"""Where the samples of tar files lie.

A sample is all members of a file that have one key: ``a/b.seg.png`` has the key ``a/b`` and the
ending ``seg.png``.  They may lie anywhere in the archive; webdataset itself needs them one after
the other.  The index has

- for each member its ``start``, its ``size`` and the number of its ``ending``, sorted by sample;
- for each sample where its members end (``member_end``) and its key ends (``key_end``), counted
  from the first of the file; and the keys, one after another (``keys``).
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from loaderx.errors import FileError
from loaderx.sources.cache.folder import CacheFolder, FileIndex, IndexedFile, Json
from loaderx.sources.columns.elements import items_at
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.files.parts import Located, Parts, lie_outside
from loaderx.sources.formats.tar.members import TarWalk
from loaderx.tree import Array

_VERSION = 1
_MOST_ENDINGS = 4096  # of one shard; more are numbers that stand behind the first dot

Numbers: TypeAlias = npt.NDArray[np.int64]


class Shard(NamedTuple):
    """The notes of a shard, beside its arrays."""

    endings: dict[str, int]  # the number of samples that have each of them
    has_end: bool


class TarIndex:
    """The samples of tar files, found in the cache folder or made now."""

    def __init__(self, files: FileSet, cache: CacheFolder) -> None:
        found = cache.index("tar", _VERSION, files, lambda number: index_tar(files, number))
        self._arrays = found.arrays
        self.samples, self.members = _parts(found, "member_end"), _parts(found, "start")
        self._keys = _parts(found, "keys")
        notes = cast("list[dict[str, object]]", found.notes)
        self.shards = [
            Shard(cast("dict[str, int]", note["endings"]), bool(note["has_end"])) for note in notes
        ]

    def of_samples(self, samples: Numbers, shards: Numbers) -> SampleMembers:
        """The members of samples, by their numbers; ``shards`` are those that have them."""
        starts, stops = self._ranges("member_end", samples, shards, self.members)
        counts = stops - starts
        which = items_at(Located(None, starts), counts).rows
        arrays = self._arrays
        return SampleMembers(
            counts, arrays["ending"][which], arrays["start"][which], arrays["size"][which]
        )

    def keys_of(self, samples: Numbers, shards: Numbers) -> list[str]:
        starts, stops = self._ranges("key_end", samples, shards, self._keys)
        data = self._arrays["keys"].data
        return [
            str(data[start:stop], "utf-8", "surrogateescape")
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
        ]

    def _ranges(
        self, name: str, samples: Numbers, shards: Numbers, parts: Parts
    ) -> tuple[Numbers, Numbers]:
        """Where samples begin and end in an array, in which a shard has a part."""
        ends = self._arrays[name]
        stops = ends[samples]
        is_first = samples == self.samples.starts[shards]
        starts = np.where(is_first, 0, ends[np.maximum(samples - 1, 0)])
        if lie_outside(starts, stops, parts.counts[shards]):
            raise FileError(
                "the index is damaged. Remove the cache folder, so that it is made again."
            )
        begins = parts.starts[shards]
        return starts + begins, stops + begins


class SampleMembers(NamedTuple):
    """Members of several samples, one sample after the other."""

    counts: npt.NDArray[np.int64]  # of each sample
    endings: npt.NDArray[np.uint16]
    starts: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]


def _parts(found: FileIndex, name: str) -> Parts:
    return found.parts.get(name) or Parts([0] * len(found.notes))


# Making it --------------------------------------------------------------------------------------


def index_tar(files: FileSet, number: int) -> IndexedFile:
    """The samples of one file."""
    path = files.paths[number]
    starts: list[int] = []
    sizes: list[int] = []
    samples: list[int] = []  # the number of each member's sample
    endings: list[int] = []
    numbers: dict[tuple[int, str], int] = {}  # of samples, by archive and key
    known: dict[str, int] = {}  # endings
    with files.open(number) as file:
        walk = TarWalk(file, path)
        for member in walk:
            key, ending = split_name(member.name)
            if not ending:
                continue
            samples.append(numbers.setdefault((member.archive, key), len(numbers)))
            endings.append(known.setdefault(ending, len(known)))
            starts.append(member.start)
            sizes.append(member.size)
            if len(known) > _MOST_ENDINGS:
                raise FileError(
                    f"{path} has more than {_MOST_ENDINGS} endings, such as {ending!r}: what "
                    "stands behind the first dot of a name is its ending, and what stands before "
                    "it the key of the sample. Write names without other dots."
                )
    sample, kind = np.array(samples, np.int64), np.array(endings, np.uint16)
    order = np.argsort(sample * (_MOST_ENDINGS + 1) + kind, kind="stable")
    sample, kind = sample[order], kind[order]
    keys = [key.encode("utf-8", "surrogateescape") for _, key in numbers]
    _refuse_twice(sample, kind, keys, list(known), path)
    counts = np.bincount(kind, minlength=len(known)).tolist()
    noted: dict[str, Json] = dict(zip(known, counts, strict=True))
    arrays: dict[str, Array] = {
        "start": np.array(starts, np.int64)[order],
        "size": np.array(sizes, np.int64)[order],
        "ending": kind,
        "member_end": np.cumsum(np.bincount(sample, minlength=len(keys)), dtype=np.int64),
        "keys": np.frombuffer(b"".join(keys), np.uint8),
        "key_end": np.cumsum(np.fromiter(map(len, keys), np.int64, len(keys)), dtype=np.int64),
    }
    return IndexedFile(arrays, {"endings": noted, "has_end": walk.has_end})


def split_name(name: str) -> tuple[str, str]:
    """The key of a member and its ending in lower case; an empty ending if it belongs to no sample.

    >>> split_name("a.b/c.Seg.PNG"), split_name("__meta__/x.json"), split_name("a/._c.png")
    (('a.b/c', 'seg.png'), ('__meta__/x', ''), ('a/', ''))
    """
    folder, slash, last = name.rpartition("/")
    stem, _, ending = last.partition(".")
    key = f"{folder}{slash}{stem}"
    first = name.partition("/")[0]
    is_meta = len(first) > 3 and first.startswith("__") and first.endswith("__")
    return key, "" if is_meta or not stem else ending.lower()


def _refuse_twice(
    sample: npt.NDArray[np.int64],
    kind: npt.NDArray[np.uint16],
    keys: list[bytes],
    endings: list[str],
    path: str,
) -> None:
    """Refuses a sample with two members of one ending, which would be ambiguous."""
    twice = np.flatnonzero((sample[1:] == sample[:-1]) & (kind[1:] == kind[:-1]))
    if len(twice):
        key = keys[int(sample[twice[0]])].decode("utf-8", "replace")
        ending = endings[int(kind[twice[0]])]
        raise FileError(
            f"{path} has {key}.{ending} twice, and {len(twice) - 1} other members: a sample has "
            "each ending once, in lower case."
        )
