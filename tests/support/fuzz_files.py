"""Damaged files: ``.npy``, ``.npz``, folders, IDX, tokens.  A target of `fuzz.py`.

A case takes a valid file, damages it (or not), opens it as a user would, and reads.  What loaderx
reads must be what another reader finds in the same file (`np.load`, or a few lines here), wherever
that reader accepts the file.  What loaderx refuses must be a `LoaderxError`, and a `FileError`
names the file.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import random
import struct
import zipfile
from functools import lru_cache
from pathlib import Path
from traceback import walk_tb

import numpy as np

from fuzz_case import run_case
from loaderx import Dataset, FileError, LoaderxError, RecordError
from loaderx.sources import Tokens, open_idx

METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
DTYPES = (
    "u1", "i1", "?", "<i2", ">i4", "<i8", "<f2", ">f4", "<f8", "<c8", "S3", "<U2", ">U1", "V5",
    "<M8[s]", ">m8[25us]", [("a", "<f4"), ("b", "u1", (2,))], [("é", "<i2")], [("名前", ">f8")],
    [("x", [("y", "<i2"), ("z", "S2")]), ("w", "?")],
    {"names": ["a"], "formats": ["<f4"], "offsets": [4], "itemsize": 12},
)  # fmt: skip
IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
NUMBERS = (
    0, 1, 2, 3, 7, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**62,
    2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, -1, -2, -(2**31), -(2**63),
)  # fmt: skip
DESCRS = (
    "'|V0'", "'|S0'", "'<U0'", "'O'", "'|O8'", "'T'", "'<f7'", "''", "'a'", "None", "True", "3",
    "'<U1000000000'", "'|S4294967296'", "'|V2147483647'", "'<U4611686018427387904'", "'i4,f4'",
    "'3f4'", "'(2,2)f4'", "'<M8[25s]'", "'<M8[foo]'", "'<M8[0s]'", "'M8'", "'<f8' '<f8'",
    "('<f8', (2,))", "('<f8', (-1,))", "('<f8', 10000000000)", "('<f8', ())", "('V0', (3,))", "[]",
    "()", "[()]", "[('a',)]", "[('a', '<f4'), ('a', '<f4')]", "[('a', 'O')]", "[('', '<f4')]",
    "[('a', '|V0')]", "[('a', '<f4', (1000, 1000, 1000))]", "[('a', '<f4', (-1,))]",
    "[(('t', 'a'), '<f4')]", "[(3, '<f4')]", "[('a', [('b', [('c', '<i2')])])]",
    "[('', '|V3'), ('b', '<i2'), ('', '|V9')]", "[('a', '<f4', 3, 4)]", "{'a': ('<f4', 0)}",
    "{'names': ['a'], 'formats': ['<f4']}", "b'<f4'", "'<f4\\x00'", "'\\ud800'", "'float'",
    "'numpy.float64'", "'<c64'", "'|b8'", "'=f4'", "'|f4'", "'g'", "'P'", "'<i16'",
    "[('a', " * 40 + "'<f4'" + ")]" * 40, "(" * 60 + "'<f4'" + ",)" * 60, "(" * 250, "-" * 3000,
)  # fmt: skip
# Where the fields of a zip archive lie behind their signature, and their lengths.
FIELDS = {
    b"PK\x01\x02": (
        (4, 2), (6, 2), (8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2), (32, 2),
        (34, 2), (38, 4), (42, 4),
    ),
    b"PK\x03\x04": ((4, 2), (6, 2), (8, 2), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2)),
    b"PK\x05\x06": ((4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 4), (20, 2)),
}  # fmt: skip


def check(seed: int) -> str:
    return run_case(seed, CASES)


# Cases --------------------------------------------------------------------------------------------


def _npy(draw: random.Random, place: Path) -> str:
    path = place / "x.npy"
    content, is_whole = _damaged_npy(draw, _array(draw))
    path.write_bytes(content)

    def expected() -> dict[str, np.ndarray]:
        return {"x": np.load(path, allow_pickle=False)}

    return _outcome(draw, lambda: Dataset.open(path), expected, path, is_whole)


def _npz(draw: random.Random, place: Path) -> str:
    path = place / "x.npz"
    content, is_whole = _archive(draw)
    if is_whole:
        content, is_whole = draw.choice([damaged, damaged, _damaged_zip])(draw, content)
    path.write_bytes(content)
    make, names = draw.choice(
        [
            (lambda: Dataset.open(path), {"x": "x", "y": "y"}),
            (lambda: Dataset.open(path, columns=["y"]), {"y": "y"}),
            (lambda: Dataset(path, "y", "x"), {"data": "y", "label": "x"}),
        ]
    )

    def expected() -> dict[str, np.ndarray]:
        with np.load(path, allow_pickle=False) as file:
            return {leaf: file[name] for leaf, name in names.items()}

    return _outcome(draw, make, expected, path, is_whole)


def _folder(draw: random.Random, place: Path) -> str:
    rows = draw.randint(1, 9)
    is_whole = True
    for name in ("x", "y"):
        content, as_it_was = _damaged_npy(draw, _array(draw, rows))
        (place / f"{name}.npy").write_bytes(content)
        is_whole = is_whole and as_it_was
    make, names = draw.choice(
        [
            (lambda: Dataset.open(place), {"x": "x", "y": "y"}),
            (lambda: Dataset(place, "x", "y.npy"), {"data": "x", "label": "y"}),
        ]
    )

    def expected() -> dict[str, np.ndarray]:
        return {leaf: np.load(place / f"{name}.npy") for leaf, name in names.items()}

    return _outcome(draw, make, expected, place, is_whole)


def _idx(draw: random.Random, place: Path) -> str:
    path = place / "x"
    kind = draw.choice(list(IDX_TYPES))
    shape = (draw.randint(1, 9), *(draw.randint(1, 4) for _ in range(draw.randint(0, 3))))
    data = draw.randbytes(int(np.prod(shape)) * np.dtype(IDX_TYPES[kind]).itemsize)
    is_whole = True
    if draw.random() < 0.3:
        is_whole = False
        shape = (*shape[:-1], draw.choice(NUMBERS) % 2**32)
    if draw.random() < 0.1:
        is_whole = False
        shape += tuple(draw.choice([1, 1, 0, 2**31]) for _ in range(draw.randint(1, 200)))
    content = bytes([0, 0, kind, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + data
    if is_whole and draw.random() < 0.5:
        content, is_whole = damaged(draw, content)
    if draw.random() < 0.5:
        content = gzip.compress(content, draw.randint(1, 9))
        if is_whole:
            content, is_whole = damaged(draw, content)
    path.write_bytes(content)

    def expected() -> dict[str, np.ndarray]:
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        kind, axes = raw[2:4]
        shape = struct.unpack_from(f">{axes}I", raw, 4)
        found = np.frombuffer(raw, IDX_TYPES[kind], offset=4 + 4 * axes).reshape(shape)
        return {"x": found.astype(found.dtype.newbyteorder("="))}

    return _outcome(draw, lambda: Dataset.from_arrays(x=open_idx(path)), expected, path, is_whole)


def _tokens(draw: random.Random, place: Path) -> str:
    kind = draw.choice(["<u2", "<i4", ">u2", "u1"])
    length, stride = draw.randint(1, 4), draw.choice([None, None, 1, 3, 10**12])
    paths, is_whole = [], True
    for number in range(draw.choice([1, 1, 2, 3])):
        array = np.arange(draw.randint(length + 1, 40)).astype(kind)
        if draw.random() < 0.5:
            content, as_it_was = _damaged_npy(draw, array)
            path = place / f"{number}.npy"
        else:
            content, as_it_was = damaged(draw, array.tobytes())
            path = place / f"{number}.bin"
        path.write_bytes(content)
        paths.append(path)
        is_whole = is_whole and as_it_was
    given = paths if len(paths) > 1 or draw.random() < 0.5 else paths[0]
    dtype = kind if any(path.suffix == ".bin" for path in paths) else None

    def expected() -> dict[str, np.ndarray]:
        step, rows = stride or length, []
        for path in paths:
            found = np.fromfile(path, kind) if path.suffix == ".bin" else np.load(path)
            starts = range(0, len(found) - length + 1, step)
            rows += [found[at : at + length] for at in starts]
        return {"tokens": np.stack(rows).astype(found.dtype)}

    def make() -> Dataset:
        return Dataset.from_source(Tokens(given, length, dtype, stride))

    return _outcome(draw, make, expected, place, is_whole)


CASES = (_npy, _npy, _npz, _npz, _npz, _folder, _idx, _tokens)


# Valid files --------------------------------------------------------------------------------------


def _array(draw: random.Random, rows: int | None = None) -> np.ndarray:
    kind = np.dtype(draw.choice(DTYPES))
    axes = [draw.randint(1, 9) if rows is None else rows]
    axes += [draw.choice([0, 1, 2, 3, 5]) for _ in range(draw.randint(0, 3))]
    array = np.zeros(axes, kind)
    if kind.kind not in "U":  # not every number is a character
        raw = draw.randbytes(array.nbytes)
        array = np.frombuffer(raw, kind).reshape(axes) if raw else array
    if draw.random() < 0.3:
        array = np.asfortranarray(array)
    return array


def _written(array: np.ndarray, version: tuple[int, int] | None = None) -> bytes:
    out = io.BytesIO()
    try:
        np.lib.format.write_array(out, array, version)
    except ValueError:  # the version cannot hold its names
        return _written(array)
    return out.getvalue()


@lru_cache(maxsize=256)
def _valid_archive(number: int) -> bytes:
    """Archives of two arrays: few, since packing takes longer than all the rest."""
    draw = random.Random(number)
    rows = draw.randint(1, 9)
    return _zipped(draw, [_written(_array(draw, rows)) for _ in "xy"])


def _zipped(draw: random.Random, contents: list[bytes], names: str = "xy") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in zip(names, contents, strict=True):
            method = draw.choice(METHODS)
            if draw.random() < 0.5:
                archive.writestr(f"{name}.npy", content, method)
                continue
            info = zipfile.ZipInfo(f"{name}.npy")
            info.compress_type = method
            with archive.open(info, "w", force_zip64=True) as file:  # as np.savez does
                file.write(content)
    return out.getvalue()


def _archive(draw: random.Random) -> tuple[bytes, bool]:
    """An archive as it should be; or one whose members are damaged, under right checksums."""
    if draw.random() < 0.7:
        return _valid_archive(draw.randrange(100)), True
    rows = draw.randint(1, 9)
    members = [_damaged_npy(draw, _array(draw, rows)) for _ in "xy"]
    contents = [content for content, _ in members]
    names = draw.choice(["xy"] * 9 + ["xx"])
    is_whole = names == "xy" and all(as_it_was for _, as_it_was in members)
    return _zipped(draw, contents, names), is_whole


# Damage: each gives the content and whether it is as it was ---------------------------------------


def damaged(draw: random.Random, content: bytes) -> tuple[bytes, bool]:
    raw = bytearray(content)
    how = draw.randrange(9)
    if how <= 1:
        return content, True
    if how == 2:
        for _ in range(draw.choice([1, 1, 2, 8])):
            raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
    elif how == 3:
        del raw[draw.randrange(len(raw)) :]
    elif how == 4:
        raw += draw.randbytes(draw.choice([1, 2, 8, 100]))
    elif how == 5:
        at = draw.randrange(len(raw))
        del raw[at : at + draw.choice([1, 2, 4, 30])]
    elif how == 6:
        at = draw.randrange(len(raw))
        raw[at:at] = raw[(start := draw.randrange(len(raw))) : start + draw.choice([1, 4, 60])]
    elif how == 7:
        at = draw.randrange(len(raw))
        raw[at : at + 8] = draw.choice([b"\0", b"\xff", b"\x7f", b"("]) * 8
    else:
        at, width = draw.randrange(len(raw)), draw.choice([2, 4, 8])
        raw[at : at + width] = (draw.choice(NUMBERS) % 256**width).to_bytes(width, "little")
    return bytes(raw), False


def _damaged_npy(draw: random.Random, array: np.ndarray) -> tuple[bytes, bool]:
    content = _written(array, draw.choice([None, None, (1, 0), (2, 0), (3, 0)]))
    if draw.random() < 0.5:
        return damaged(draw, content)
    version = draw.choice([(1, 0), (2, 0), (3, 0)])
    shape = list(array.shape)
    for _ in range(draw.choice([0, 1, 1, 2])):
        shape[draw.randrange(len(shape))] = draw.choice(NUMBERS)
    if draw.random() < 0.1:
        shape += [draw.choice([0, 1, 2**31])] * draw.choice([1, 30, 70])
    said, order, extra = str(tuple(shape)), draw.choice(["False", "True"]), ""
    if draw.random() < 0.2:
        said = draw.choice([said, "()", "3", "[3]", "(3.0,)", "(True,)", "(3L,)", "(" * 99])
        order = draw.choice([order, "1", "None"])
        extra = draw.choice(["", "'more': 1, "])
    descr = repr(np.lib.format.dtype_to_descr(array.dtype))
    descr = draw.choice([descr, draw.choice(DESCRS)])
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {said}, {extra}}}"
    raw = (text + " " * draw.choice([0, 40, 20_000 if draw.random() < 0.1 else 7]) + "\n").encode(
        "utf-8" if version == (3, 0) else "latin1", "replace"
    )
    if version == (1, 0) and len(raw) > 65_535:
        version = (2, 0)
    head = b"\x93NUMPY" + bytes(version)
    head += struct.pack("<H" if version == (1, 0) else "<I", len(raw)) + raw
    return head + (array.tobytes() or bytes(16)), False


def _damaged_zip(draw: random.Random, content: bytes) -> tuple[bytes, bool]:
    raw = bytearray(content)
    for _ in range(draw.choice([1, 1, 2, 3])):
        signature = draw.choice(list(FIELDS))
        at = raw.find(signature, draw.randrange(len(raw)))
        at = raw.find(signature) if at < 0 else at
        if at >= 0:
            offset, width = draw.choice(FIELDS[signature])
            value = draw.choice([*NUMBERS, draw.randrange(len(raw))])
            raw[at + offset : at + offset + width] = (value % 256**width).to_bytes(width, "little")
    return bytes(raw), False


# Reading ------------------------------------------------------------------------------------------


def _outcome(draw, make, expected, path, is_whole) -> str:
    try:
        dataset = make()
        _read(draw, dataset, expected)
    except LoaderxError as error:
        _check_refusal(error, path, is_whole)
        return "refused"
    return "data"


def _check_refusal(error: LoaderxError, path: Path, is_whole: bool) -> None:
    cause = error.__cause__
    if isinstance(error, RecordError):
        if "maximum character" in str(cause) or "is not in range" in str(cause):
            return  # a number in a text is no character: NumPy finds out when it makes a string
        assert isinstance(cause, LoaderxError), f"a {type(cause).__name__} came out of the reader"
        error, cause = cause, cause.__cause__
    if isinstance(error, FileError):
        assert path.name in str(error), f"the message does not name {path}: {error}"
    if isinstance(cause, MemoryError):
        # Deep nesting in a header ends so; reading data may not.
        last = [frame for frame, _ in walk_tb(cause.__traceback__)][-1]
        file = last.f_code.co_filename
        assert file.endswith("ast.py"), f"much memory was asked for by {file}"
    if is_whole:
        assert "empty" in str(error), f"refused although it is as it was: {error}"


def _read(draw: random.Random, dataset: Dataset, expected) -> None:
    length = len(dataset)
    few = range(length) if length <= 12 else [0, 1, length // 2, length - 2, length - 1]
    records = {index: dataset[index] for index in few}
    reference = None
    with contextlib.suppress(Exception):  # the other reader may refuse what we accept
        reference = expected()
    if reference is not None:
        assert {name: len(leaf) for name, leaf in reference.items()} == dict.fromkeys(
            reference, length
        )
    specs = dataset.element_spec
    for index, record in records.items():
        for name, leaf in record.items():
            _check_spec(leaf, specs[name])
            if reference is not None:
                _same(leaf, reference[name][index])
    last = draw.choice([-1, -length])
    _all_same(dataset[last], records[last % length])
    _read_batches(draw, dataset, records)


def _read_batches(draw: random.Random, dataset: Dataset, records: dict) -> None:
    """Batches hold what the records hold."""
    length, size = len(dataset), draw.randint(1, 5)
    batches = dataset.batch(size)
    for number in {0, (length - 1) // size} if length > 12 else range(len(batches)):
        batch = batches[number]
        for row in range(min(size, length - number * size)):
            index = number * size + row
            if index in records:
                _all_same({name: leaf[row] for name, leaf in batch.items()}, records[index])
    chosen = [draw.choice(list(records)) for _ in range(3)]
    for batch in dataset[np.array(chosen)].batch(3):
        for row, index in enumerate(chosen):
            _all_same({name: leaf[row] for name, leaf in batch.items()}, records[index])
    if length > 2:
        _all_same(dataset[1::2][0], records[1])


def _check_spec(leaf, spec) -> None:
    assert np.shape(leaf) == spec.shape, f"{np.shape(leaf)} is not {spec.shape}"
    if spec.shape or leaf.dtype.kind == "V":
        assert leaf.dtype == spec.dtype, f"{leaf.dtype} is not {spec.dtype}"
    else:  # a NumPy scalar: in native byte order, and a text as long as it is
        assert leaf.dtype.type is spec.dtype.type, f"{leaf.dtype} is not {spec.dtype}"


def _all_same(one: dict, other: dict) -> None:
    assert list(one) == list(other)
    for name, leaf in one.items():
        _same(leaf, other[name])


def _same(one, other) -> None:
    one, other = _native(one), _native(other)  # `Dataset.open` gives the machine's byte order
    if not one.shape and one.dtype.type is other.dtype.type:  # from scalars, or one from an array
        one = one.astype(other.dtype)
    assert one.dtype == other.dtype, f"{one.dtype} is not {other.dtype}"
    assert one.shape == other.shape, f"{one.shape} is not {other.shape}"
    assert _content(one) == _content(other), f"{one!r} is not {other!r}"


def _native(leaf) -> np.ndarray:
    array = np.asarray(leaf)
    return array.astype(array.dtype.newbyteorder("="))


def _content(array: np.ndarray) -> bytes:
    """The bytes of the values: what lies between the fields of a record says nothing."""
    if array.dtype.names is None:
        return array.tobytes()
    return b"".join(_content(array[name]) for name in array.dtype.names)
