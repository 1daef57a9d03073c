"""`ChunkSource`: the base of sources whose chunks are fetched or decoded as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from loaderx.errors import ArgumentError, ArgumentTypeError
from loaderx.memory import Lend
from loaderx.sources.adapt.kept_chunks import KeptChunks
from loaderx.sources.adapt.objects import protected
from loaderx.sources.base import Indices, Source, chunk_starts
from loaderx.sources.files.parts import Parts, Places
from loaderx.tree import Array, Structure, Tree, flatten


class Chunk:
    """The records of a chunk: columns, or single records."""

    def __init__(self, columns: list[Array] | None, structure: Structure, records: list[Tree]):
        self.columns, self.structure, self.single = columns, structure, records

    @property
    def nbytes(self) -> int:
        if self.columns is not None:
            return sum(column.nbytes for column in self.columns)
        return sum(
            leaf.nbytes if isinstance(leaf, np.ndarray) else len(leaf) if _has_len(leaf) else 32
            for record in self.single
            for leaf in flatten(record)[0]
        )

    def record(self, number: int) -> Tree:
        if self.columns is None:
            return protected(self.single[number])
        return self.structure.build([column[number] for column in self.columns])


def _has_len(leaf: object) -> bool:
    return isinstance(leaf, (bytes, str))


class ChunkSource(Source):
    """Records in chunks: row groups, compressed shards, objects in a store.

    A subclass writes `chunks` and `read_chunk`, and `spec` if the records of a chunk come stacked.
    Everything else follows.  A chunk that was read is kept, within a budget of bytes that is shared
    by the threads of a process (``LOADERX_CHUNK_BYTES``, 1 GiB by default).  A global shuffle,
    which would read a chunk for almost every record, is refused; ``shuffle(block="source",
    window=...)`` reads each chunk once.

    >>> class Squares(ChunkSource):
    ...     def chunks(self):
    ...         return np.array([0, 4, 8, 10])
    ...
    ...     def read_chunk(self, number):
    ...         first, stop = self.chunks()[number : number + 2]
    ...         return [{"square": i * i} for i in range(first, stop)]
    >>> [record["square"] for record in Squares()]
    [0, 1, 4, 9, 16, 25, 36, 49, 64, 81]
    """

    def chunks(self) -> Indices:
        raise NotImplementedError(f"{type(self).__name__} has no chunks.")

    def read_chunk(self, number: int) -> Tree:
        """All records of a chunk: a list of them, or stacked as in `gather` if there is a spec.

        ``number`` counts the chunks of `chunks`, without empty ones.  loaderx does not change what
        is returned.
        """
        raise NotImplementedError(f"{type(self).__name__} has no read_chunk.")

    @cached_property
    def _parts(self) -> Parts:
        starts = chunk_starts(self)
        if starts is None:
            raise ArgumentTypeError(f"{type(self).__name__}.chunks() must give where chunks begin.")
        return Parts(np.diff(starts))

    @cached_property
    def kept_chunks(self) -> KeptChunks[Chunk]:
        """The chunks that are kept."""
        return KeptChunks(self._decode, self._parts.counts)

    def _decode(self, number: int) -> Chunk:
        found, count = self.read_chunk(number), int(self._parts.counts[number])
        if isinstance(found, list):
            self._check_count(number, len(found), count)
            return Chunk(None, flatten(None)[1], found)
        leaves, structure = flatten(found)
        columns = [np.asarray(leaf) for leaf in leaves]
        for column in columns:
            self._check_count(number, len(column) if column.ndim else -1, count)
        columns = [column.view() for column in columns]
        for column in columns:
            column.flags.writeable = False  # rows of it are handed out
        return Chunk(columns, structure, [])

    def _check_count(self, number: int, found: int, expected: int) -> None:
        if found != expected:
            rows = "a single value" if found < 0 else f"{found} records"
            raise ArgumentError(
                f"{type(self).__name__}.read_chunk({number}) gave {rows}; chunks() says {expected}."
            )

    def __len__(self) -> int:
        for name in ("chunks", "read_chunk"):
            if getattr(type(self), name) is getattr(ChunkSource, name):
                raise ArgumentTypeError(
                    f"{type(self).__name__} needs chunks(self), where its chunks begin, and "
                    "read_chunk(self, number), the records of one."
                )
        return int(np.asarray(self.chunks())[-1])

    @property
    def random_access(self) -> bool:
        return False

    @property
    def gathers(self) -> bool:
        return self.spec is not None

    def gather(self, indices: Indices, lend: Lend) -> Tree:
        leaves, structure = flatten(self.buffers(len(indices), lend))
        parts = list(self._parts.split(indices))
        with self.kept_chunks.together(_counts(parts)) as chunks:
            for number, places, inside in parts:
                columns = chunks[number].columns
                if columns is None or chunks[number].structure is not structure:
                    raise ArgumentError(
                        f"{type(self).__name__}.read_chunk({number}) must give what its spec says: "
                        f"arrays with the leaves {structure.paths()}."
                    )
                for target, column in zip(leaves, columns, strict=True):
                    target[places] = column[inside]
        return structure.build(leaves)

    def records(self, indices: Indices) -> list[Tree]:
        found: list[Tree] = [None] * len(indices)
        parts = list(self._parts.split(indices))
        with self.kept_chunks.together(_counts(parts)) as chunks:
            for number, places, inside in parts:
                chunk = chunks[number]
                rows = np.arange(len(indices))[places].tolist()
                for place, row in zip(rows, inside.tolist(), strict=True):
                    found[place] = chunk.record(row)
        return found

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "kept_chunks"}


def _counts(parts: Sequence[tuple[int, Places, Indices]]) -> dict[int, int]:
    return {number: len(inside) for number, _, inside in parts}


def chunk_counts(parts: Parts, indices: Indices) -> dict[int, int]:
    """The chunks that hold these records, and how many each holds."""
    numbers = np.searchsorted(parts.ends, indices, side="right")
    found, counts = np.unique(numbers, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))
