"""Damaged tar files and image folders.  A target of `fuzz.py`.

A case writes tar files or a folder of images, damages one (or not), opens it as a user would, and
reads all records.  What loaderx finds in a tar file must hold all that `tarfile` finds in it; what
it refuses must be a `LoaderxError` that names the file, and so must be the cause of a record's.
Without Pillow, images are read as bytes.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import io
import json
import random
import tarfile
from functools import lru_cache
from pathlib import Path

import numpy as np

from fuzz_case import run_case
from loaderx import Dataset, LoaderxError, RecordError
from loaderx.sources.formats.tar.index import split_name

HAS_PILLOW = importlib.util.find_spec("PIL") is not None
FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
IMAGE_KINDS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")
FIELDS = ((0, 100), (124, 136), (148, 156), (156, 157), (257, 263), (345, 500))
VALUES = (
    b"", b"\0", b"0", b"7", b"-1", b"77777777777", b"777777777777", b"\x80" + b"\xff" * 11,
    b"\xff" * 12, b"\x80" + b"\0" * 10 + b"\5", b"L", b"K", b"S", b"x", b"g", b"5", b"1", b"a.b/",
    b"../../x.txt", b"__meta__", b".", b"/", b"ustar\0", b" " * 12, b"0_1", b"0x1F",
)  # fmt: skip


def check(seed: int) -> str:
    return run_case(seed, CASES)


def _tar(draw: random.Random, place: Path) -> str:
    contents = [_archive(draw.randrange(60)) for _ in range(draw.choice([1, 1, 2]))]
    which, is_whole = draw.randrange(len(contents)), True
    contents[which], is_whole = draw.choice([_damaged, _damaged_header])(draw, contents[which])
    paths = []
    for number, content in enumerate(contents):
        paths.append(place / f"x{number}.tar")
        paths[-1].write_bytes(content)
    decode = draw.random() < 0.5
    cache = place / "cache" if draw.random() < 0.3 else False
    try:
        dataset = Dataset.open(paths, format="webdataset", decode=decode, cache=cache)
        found = _records(dataset)
    except LoaderxError as error:
        _check_refusal(error, paths[which].name, is_whole)
        return "refused"
    if not decode:
        for path in paths:
            _check_members(found, path)
    return "data"


def _check_refusal(error: LoaderxError, name: str, is_whole: bool) -> None:
    assert not is_whole, f"refused although it is as it was: {error}"
    assert name in str(error), f"the message does not name {name}: {error}"


def _check_record(error: RecordError, index: int) -> None:
    assert error.index == index, f"record {error.index} is blamed, not {index}: {error}"
    assert isinstance(error.__cause__, LoaderxError), f"a {type(error.__cause__).__name__}"


def _check_members(found: list[dict], path: Path) -> None:
    have = {(one["__key__"], name, value) for one in found for name, value in one.items()}
    foreign = (tarfile.TarError, OSError, ValueError, OverflowError)  # it may refuse what we accept
    with contextlib.suppress(*foreign), tarfile.open(path, "r:") as archive:
        for info in archive:
            key, ending = split_name(info.name)
            if info.isreg() and ending:
                value = archive.extractfile(info).read()
                assert (key, ending, value) in have, f"{key!a}.{ending!a} is not there"


def _folder(draw: random.Random, place: Path) -> str:
    files = {}
    for number in range(draw.randint(1, 5)):
        content, is_whole = _image(draw.randrange(40)), True
        if draw.random() < 0.5:
            content, is_whole = _damaged(draw, content)
        files[f"{draw.choice('ab')}/{number}.png"] = content, is_whole
    for name, (content, _) in files.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_bytes(content)
    dataset = Dataset.open(place, decode=HAS_PILLOW)
    assert len(dataset) == len(files)
    outcome = "data"
    for index, name in enumerate(sorted(files)):
        try:
            record = dataset[index]
        except RecordError as error:
            _check_refusal(error, name, files[name][1])
            _check_record(error, index)
            outcome = "refused"
        else:
            assert dataset.classes["label"][record["label"]] == name[0]
    return outcome


CASES = (_tar, _tar, _folder)


def _records(dataset: Dataset) -> list[dict]:
    found = []
    for index in range(len(dataset)):
        try:
            found.append(dataset[index])
        except RecordError as error:
            _check_record(error, index)
            _check_refusal(error, ".tar: ", False)
    return found


# Valid files --------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _archive(number: int) -> bytes:
    draw = random.Random(number)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=draw.choice(FORMATS)) as archive:
        for sample in range(draw.randint(1, 6)):
            folder = draw.choice(["", "a/", "b.c/", "x" * 90 + "/", "ü/"])
            for ending in draw.sample(list(MEMBERS), draw.randint(1, 4)):
                data = MEMBERS[ending](draw)
                info = tarfile.TarInfo(f"{folder}{sample}.{ending}")
                info.size, info.mtime = len(data), draw.choice([0, 1.5])
                archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def _npy(draw: random.Random) -> bytes:
    out = io.BytesIO()
    np.save(out, np.arange(draw.randint(0, 9), dtype=draw.choice(["u1", "<f4", ">i8"])))
    return out.getvalue()


def _npz(draw: random.Random) -> bytes:
    out = io.BytesIO()
    np.savez(out, a=np.arange(draw.randint(0, 9)), b=np.float32(3))
    return out.getvalue()


MEMBERS = {
    "cls": lambda draw: str(draw.randrange(1000)).encode(),
    "txt": lambda draw: "text ü".encode() * draw.randrange(4),
    "json": lambda draw: json.dumps({"a": [1, 2], "b": {"c": None}}).encode(),
    "json.gz": lambda draw: gzip.compress(b'{"a": 1}', mtime=0),
    "npy": _npy,
    "depth.npz": _npz,
    "bin": lambda draw: draw.randbytes(draw.choice([0, 1, 511, 512, 513, 2000])),
    **({"png": lambda draw: _image(draw.randrange(40))} if HAS_PILLOW else {}),
}


@lru_cache(maxsize=64)
def _image(number: int) -> bytes:
    if not HAS_PILLOW:
        return bytes([number]) * 50
    from PIL import Image

    draw = random.Random(number)
    shape = draw.randint(1, 20), draw.randint(1, 20), 3
    pixels = np.frombuffer(draw.randbytes(shape[0] * shape[1] * 3), np.uint8).reshape(shape)
    out, kind = io.BytesIO(), IMAGE_KINDS[number % len(IMAGE_KINDS)]
    image = Image.fromarray(pixels)
    mode = draw.choice(["RGB", "L", "CMYK"] if kind == "JPEG" else ["RGB", "L"])
    image.convert(mode).save(out, kind)
    return out.getvalue()


# Damage: each gives the content and whether it is as it was ---------------------------------------


def _damaged(draw: random.Random, content: bytes) -> tuple[bytes, bool]:
    raw = bytearray(content)
    how = draw.randrange(8)
    at = draw.randrange(len(raw))
    if how <= 1:
        return content, True
    if how == 2:
        for _ in range(draw.choice([1, 1, 2, 8])):
            raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
    elif how == 3:
        del raw[at:]
    elif how == 4:
        raw += draw.randbytes(draw.choice([1, 512, 1500]))
    elif how == 5:
        del raw[at : at + draw.choice([1, 4, 512])]
    elif how == 6:
        at = at // 512 * 512
        raw[at : at + 512] = bytes(512)
    else:
        raw[at : at + 8] = draw.choice([b"\0", b"\xff", b"\x7f", b"9"]) * 8
    return bytes(raw), False


def _damaged_header(draw: random.Random, content: bytes) -> tuple[bytes, bool]:
    """Another value in a field of a header, most often under a checksum that is right."""
    raw = bytearray(content)
    places = [at for at in range(0, len(raw), 512) if raw[at + 257 : at + 262] == b"ustar"]
    at = draw.choice(places)
    start, stop = draw.choice(FIELDS)
    if start == 345 and raw[at + 262] == ord(" "):
        return content, True  # tarfile takes what GNU has there for a part of the name
    raw[at + start : at + stop] = draw.choice(VALUES)[: stop - start].ljust(stop - start, b"\0")
    if draw.random() < 0.8:
        raw[at + 148 : at + 156] = b" " * 8
        raw[at + 148 : at + 156] = b"%06o\0 " % sum(raw[at : at + 512])
    return bytes(raw), bytes(raw) == content
