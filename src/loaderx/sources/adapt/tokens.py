"""Files of tokens: one long row of numbers, cut into records of one length.

The files are mapped into memory, never read whole.  If rows follow each other without a gap, a
file is read as a matrix, and a batch is one gather; the targets, shifted by one token, are a matrix
that begins one token later.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypedDict

import numpy as np
import numpy.typing as npt

from loaderx.errors import ArgumentError, ArgumentTypeError, FileError, check_int
from loaderx.gathering import take_rows
from loaderx.memory import Layout, Lend
from loaderx.sources.adapt.arrays import gatherer_of
from loaderx.sources.base import ForWorkers, Gather, Indices, OwnSource
from loaderx.sources.mapping import map_array, open_regular
from loaderx.tree import Array, ArraySpec, DType, Tree

PathLike = str | os.PathLike[str]

_MARK: DType = np.dtype(np.int32)  # of segment ids and positions, as those of `pack`

if TYPE_CHECKING:

    class _Settings(TypedDict):
        """The attributes of `Tokens` that its pickle holds beside the paths."""

        length: int
        stride: int
        targets: bool
        end: int | None
        _dtype: DType | None


class Tokens(OwnSource, ForWorkers):
    """Rows of ``length`` tokens from flat binary files, or from ``.npy`` files of one axis.

    Args:
        path: a file, or a list of files that are read as one; no row spans two files.
        length: tokens in a row.
        dtype: of a binary file; uint16 by default. An ``.npy`` file has its own.
        stride: tokens from one row to the next; ``length`` by default.
        targets: records are ``{"inputs", "targets"}``, the targets one token further on,
            instead of ``{"tokens"}``.
        end: the token that ends each document.  With it records have two more leaves, as packed
            rows have: ``tokens_segment_ids`` (1, 2, ... for the documents in a row) and
            ``tokens_positions`` (from 0 in each document, or where the row begins); those of
            ``inputs`` where there are targets.

    Tokens at the end of a file that do not fill a row are left out.  Tokens appended to a file
    later are not seen: make a new `Tokens`.  A pickle holds the paths; where it is loaded, the
    files must have the same sizes.

    >>> np.arange(10, dtype=np.uint16).tofile("numbers.bin")
    >>> rows = Tokens("numbers.bin", 4, targets=True)
    >>> len(rows), rows[1]["inputs"].tolist(), rows[1]["targets"].tolist()
    (2, [4, 5, 6, 7], [5, 6, 7, 8])
    >>> row = Tokens("numbers.bin", 4, end=5)[1]
    >>> row["tokens_segment_ids"].tolist(), row["tokens_positions"].tolist()
    ([1, 1, 2, 2], [0, 1, 0, 1])
    >>> os.remove("numbers.bin")
    """

    thread_safe = True
    only_gathers = True
    identifies_data = True

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        length: int,
        dtype: npt.DTypeLike | None = None,
        stride: int | None = None,
        *,
        targets: bool = False,
        end: int | None = None,
    ) -> None:
        self.length = check_int("length", length, least=1)
        self.stride = self.length if stride is None else check_int("stride", stride, least=1)
        self.targets = bool(targets)
        self.end = None if end is None else check_int("end", end)
        self._dtype = None if dtype is None else _whole_numbers(dtype)
        self.paths = [os.path.abspath(os.fspath(one)) for one in _paths(path)]
        self._cut([_map(path, self._dtype) for path in self.paths])

    def _cut(self, files: list[Array]) -> None:
        self._files = files
        kinds = {file.dtype for file in self._files}
        if len(kinds) > 1:
            raise FileError(f"the files hold different dtypes: {', '.join(map(str, kinds))}.")
        (self.dtype,) = kinds
        limits = np.iinfo(self.dtype)
        if self.end is not None and not limits.min <= self.end <= limits.max:
            raise ArgumentError(f"`end` is {self.end}, and tokens of {self.dtype} are never that.")
        counts = [
            self._rows(path, file) for path, file in zip(self.paths, self._files, strict=True)
        ]
        self._ends = np.cumsum(counts)
        # The files as matrices: of the rows, and of the rows shifted by one token.
        self._shifts = (0, 1) if self.targets else (0,)
        self._matrices = [
            [self._matrix(file, count, shift) for shift in self._shifts]
            for file, count in zip(self._files, counts, strict=True)
        ]

    def _rows(self, path: str, file: Array) -> int:
        needed = self.length + self.targets
        if len(file) < needed:
            raise FileError(
                f"{path} has {len(file)} tokens, and a row needs {needed}. Choose a smaller "
                "`length`, or leave the file out."
            )
        return (len(file) - needed) // self.stride + 1

    def _matrix(self, file: Array, count: int, shift: int) -> Array | None:
        if self.stride != self.length:
            return None
        return file[shift : shift + count * self.length].reshape(count, self.length)

    def __reduce__(self) -> tuple[object, ...]:
        counts = [len(file) for file in self._files]
        return _reopen, (self.paths, counts, self._settings())

    def for_workers(self) -> tuple[object, ...]:
        return _rebuild, (self.paths, self._files, self._settings())

    def _settings(self) -> _Settings:
        return {
            "length": self.length,
            "stride": self.stride,
            "targets": self.targets,
            "end": self.end,
            "_dtype": self._dtype,
        }

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def names(self) -> tuple[str, ...]:
        return ("inputs", "targets") if self.targets else ("tokens",)

    @property
    def _marks(self) -> tuple[str, ...]:
        first = self.names[0]
        return () if self.end is None else (f"{first}_segment_ids", f"{first}_positions")

    @property
    def spec(self) -> Tree:
        spec: dict[str, Tree] = {n: ArraySpec((self.length,), self.dtype) for n in self.names}
        return spec | {name: ArraySpec((self.length,), _MARK) for name in self._marks}

    def label(self) -> str:
        files = os.path.basename(self.paths[0])
        if len(self.paths) > 1:
            files += f" and {len(self.paths) - 1} more"
        stride = "" if self.stride == self.length else f", stride={self.stride}"
        end = "" if self.end is None else f", end={self.end}"
        return f"from_source(Tokens({files}, {self.length}, {self.dtype}{stride}{end}))"

    def gather(self, indices: Indices, lend: Lend) -> Tree:
        shape, names = (len(indices), self.length), self.names
        of_tokens = [(shape, self.dtype)] * len(names)
        made = lend(Layout.of(*of_tokens, *[(shape, _MARK)] * len(self._marks)))
        out, marks = made[: len(names)], made[len(names) :]
        if len(self._files) == 1:
            self._gather_one(0, indices, out)
        else:
            self._gather_all(indices, out)
        if self.end is not None:
            mark_documents(out[0] == self.end, *marks)
        return dict(zip((*names, *self._marks), made, strict=True))

    def gatherer(self, rows: int) -> Gather:
        matrices = [matrix for matrix in self._matrices[0] if matrix is not None]
        if len(self._files) > 1 or not matrices or self.end is not None:
            return self.gather
        return gatherer_of(self.names, matrices, rows)

    def _gather_one(self, file: int, rows: Indices, out: Sequence[Array]) -> None:
        for shift, matrix, target in zip(self._shifts, self._matrices[file], out, strict=True):
            if matrix is not None:
                take_rows(matrix, rows, target)
            else:
                np.concatenate(self._views(file, rows, shift), out=target.reshape(-1))

    def _gather_all(self, indices: Indices, out: list[Array]) -> None:
        which, inside = self._locate(indices)
        for file in np.unique(which).tolist():
            places = np.flatnonzero(which == file)
            parts = [np.empty((len(places), self.length), self.dtype) for _ in out]
            self._gather_one(file, inside[places], parts)
            for target, part in zip(out, parts, strict=True):
                target[places] = part

    def _locate(self, indices: Indices) -> tuple[npt.NDArray[np.intp], Indices]:
        which = np.searchsorted(self._ends, indices, side="right")
        starts = np.concatenate([[0], self._ends[:-1]])
        return which, indices - starts[which]

    def _views(self, file: int, rows: Indices, shift: int) -> list[Array]:
        tokens, length = self._files[file], self.length
        return [tokens[at : at + length] for at in (rows * self.stride + shift).tolist()]

    def records(self, indices: Indices) -> list[Tree]:
        which, inside = self._locate(indices)
        found = []
        for file, row in zip(which.tolist(), inside.tolist(), strict=True):
            rows = np.array([row])
            views = [self._views(file, rows, shift)[0] for shift in self._shifts]
            if self.end is not None:
                views.extend(np.empty((2, self.length), _MARK))
                mark_documents(views[0] == self.end, *views[-2:])
            found.append(dict(zip((*self.names, *self._marks), views, strict=True)))
        return found


def mark_documents(is_end: npt.NDArray[np.bool_], ids: Array, positions: Array) -> None:
    """Fills the segment ids and positions of rows, given where documents end in them."""
    length = is_end.shape[-1]
    begins = np.ones(is_end.shape, np.bool_)
    begins[..., 1:] = is_end[..., :-1]
    places = np.flatnonzero(begins)
    sizes = np.diff(places, append=is_end.size)
    starts = (places % length).astype(np.int32)  # in their rows
    first = np.flatnonzero(starts == 0)  # of each row
    number = np.arange(1, len(places) + 1, dtype=np.int32)
    number -= np.repeat(first, np.diff(first, append=len(places))).astype(np.int32)
    ids[...] = np.repeat(number, sizes).reshape(ids.shape)
    offsets = np.repeat(starts, sizes).reshape(positions.shape)
    np.subtract(np.arange(length, dtype=np.int32), offsets, out=positions)


def _reopen(paths: list[str], counts: list[int], settings: _Settings) -> Tokens:
    """Opens the files again when a pickle is loaded."""
    files = [_map(path, settings["_dtype"]) for path in paths]
    for path, file, count in zip(paths, files, counts, strict=True):
        if len(file) != count:
            raise FileError(
                f"{path} has {len(file)} tokens, and had {count} when this dataset was made. Make "
                "a new one with Tokens(...)."
            )
    return _rebuild(paths, files, settings)


def _rebuild(paths: list[str], files: list[Array], settings: _Settings) -> Tokens:
    tokens = Tokens.__new__(Tokens)
    tokens.__dict__.update(settings, paths=paths)
    tokens._cut(files)
    return tokens


def _paths(path: object) -> list[PathLike]:
    given: Iterable[object] = [path]
    if isinstance(path, Iterable) and not isinstance(path, (str, bytes, os.PathLike)):
        given = path
    paths: list[PathLike] = []
    for one in given:
        if not isinstance(one, (str, os.PathLike)):
            raise ArgumentTypeError(
                f"`path` must be the path of a file, or a list of paths; got {one!r} "
                f"({type(one).__name__})."
            )
        paths.append(one)
    if not paths:
        raise ArgumentError("`path` is an empty list: name at least one file.")
    return paths


def _whole_numbers(dtype: npt.DTypeLike) -> DType:
    try:
        kind = np.dtype(dtype)
    except TypeError as error:
        raise ArgumentTypeError(f"`dtype` must be a NumPy dtype, got {dtype!r}.") from error
    if kind.kind not in "iu":
        raise ArgumentError(f"tokens are whole numbers; `dtype` is {kind}.")
    return kind


def _map(path: str, dtype: DType | None) -> Array:
    if path.endswith(".npy"):
        return _map_npy(path, dtype)
    kind = np.dtype(np.uint16) if dtype is None else dtype
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size % kind.itemsize:
            raise FileError(
                f"{path} has {size} bytes, not a multiple of the {kind.itemsize} bytes of a "
                f"{kind} token. Is `dtype` right, and is the file complete?"
            )
        if not size:
            raise FileError(f"{path} is empty.")
        return map_array(file, kind, (size // kind.itemsize,))


def _map_npy(path: str, dtype: DType | None) -> Array:
    from loaderx.sources.files.arrays import open_npy  # slow to import

    array = open_npy(path)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise FileError(
            f"{path} holds {array.dtype}{list(array.shape)}; tokens are whole numbers in one row."
        )
    if dtype is not None and array.dtype != dtype:
        raise FileError(f"{path} holds {array.dtype}, and `dtype` is {dtype}. Leave `dtype` out.")
    return np.asarray(array)
