"""Damaged TFRecord and ArrayRecord files, and TFDS folders.  A target of `fuzz.py`.

What is read of a damaged TFRecord file must be what the slow parser finds in the same bytes: the
checksums of records are compared by `loaderx verify` only.  Records read alone, in batches and as
bytes must agree.
"""

from __future__ import annotations

import random
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np

from array_record_examples import FILES as ARRAY_RECORDS
from array_record_examples import OTHERS, PACKED, record, unpacked
from fuzz_case import run_case
from loaderx import Dataset, FileError, LoaderxError, RecordError
from loaderx.sources import parse_example
from loaderx.testing.comparing import can_be_stacked, check_equal, stacked
from tf_files import example, frame

NUMBERS = (0, 1, 127, 128, 255, 2**16, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1)
TFDS = PACKED.parent / "tfds"
NAMES = (
    "label", "flag", "as_bytes", "as_zlib", "dynamic", "names", "tokens", "words", "objects",
    "nested", "ragged", "deeper", "maybe", "image", "video", "deep",
)  # fmt: skip


def check(seed: int) -> str:
    return run_case(seed, (_tfrecord, _tfrecord, _tfds, _array_record))


# Cases --------------------------------------------------------------------------------------------


def _values(draw: random.Random, kind: int, count: int) -> list:
    if kind == 0:
        return [draw.randbytes(draw.choice([0, 1, 5, 200])) for _ in range(count)]
    if kind == 1:
        return [float(np.float32(draw.uniform(-9, 9))) for _ in range(count)]
    return [draw.choice([*NUMBERS, -1, 5]) % 2**63 for _ in range(count)]


def _tfrecord(draw: random.Random, place: Path) -> str:
    kinds = [(name, draw.randrange(3), draw.choice([None, 1, 1, 3])) for name in "abc"]
    payloads, packed = [], draw.random() < 0.8
    is_whole = True
    for _ in range(draw.randint(1, 12)):
        leaves = {
            name: _values(draw, kind, count or draw.randint(2, 4)) for name, kind, count in kinds
        }
        payload = example(leaves, packed)
        if draw.random() < 0.05:  # damaged under right checksums
            payload, same = damaged(draw, payload)
            is_whole = is_whole and same
        payloads.append(payload)
    content = b"".join(map(frame, payloads))
    if draw.random() < 0.6:
        content, same = damaged(draw, content)
        is_whole = is_whole and same
    is_packed = draw.random() < 0.2
    if is_packed:
        content = zlib.compress(content)
        if draw.random() < 0.5:
            content, same = damaged(draw, content)
            is_whole = is_whole and same
    path = place / "x.tfrecord"
    path.write_bytes(content)

    def expected() -> list[dict[str, np.ndarray]]:
        raw = path.read_bytes()
        if is_packed:
            raw = zlib.decompress(raw)
        return [parse_example(one) for one in _frames(raw)]

    decode = draw.random() < 0.8
    return _outcome(
        lambda: Dataset.open(path, cache=place / "cache", decode=decode),
        path,
        is_whole,
        expected if decode else None,
    )


def _frames(raw: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(raw):
        (length,) = struct.unpack_from("<Q", raw, at)
        found.append(raw[at + 12 : at + 12 + length])
        at += 16 + length
    return found


def _tfds(draw: random.Random, place: Path) -> str:
    kind = draw.choice(["tfrecord", "tfrecord", "array_record"])
    folder = place / "1.0.0"
    shutil.copytree(TFDS / kind / "kinds" / "1.0.0", folder)
    target = draw.choice(sorted(folder.glob("kinds-test*")) * 3 + sorted(folder.glob("*.json")))
    content, is_whole = damaged(draw, target.read_bytes(), 8000)
    target.write_bytes(content)
    names = draw.sample(NAMES, draw.randint(1, len(NAMES)))
    return _outcome(
        lambda: Dataset.open(folder, split="test", columns=names, cache=False), folder, is_whole
    )


def _array_record(draw: random.Random, place: Path) -> str:
    name = draw.choice([one for one in ARRAY_RECORDS if one not in OTHERS and one != "empty"])
    path = unpacked(name, place)
    content = path.read_bytes()
    if draw.random() < 0.5:  # where the list of chunks is
        tail = len(content) - (1 << 17) - 2000
        end, is_whole = damaged(draw, content[tail:])
        content = content[:tail] + end
    else:
        content, is_whole = damaged(draw, content)
    path.write_bytes(content)

    def expected() -> list[dict[str, bytes]]:
        return [{"data": record(i)} for i in range(40)]

    make = lambda: Dataset.open(path, cache=False)
    return _outcome(make, path, is_whole, expected if is_whole else None)


# Damage: the content and whether it is as it was --------------------------------------------------


def damaged(draw: random.Random, content: bytes, most: int | None = None) -> tuple[bytes, bool]:
    raw = bytearray(content)
    how = draw.randrange(8)
    if how <= 1 or not raw:
        return content, True

    def place() -> int:
        return draw.randrange(min(len(raw), most or len(raw)))

    at = place()
    if how == 2:
        for _ in range(draw.choice([1, 1, 2, 8])):
            raw[place()] ^= 1 << draw.randrange(8)
    elif how == 3:
        del raw[at:]
    elif how == 4:
        raw += draw.randbytes(draw.choice([1, 2, 8, 100]))
    elif how == 5:
        del raw[at : at + draw.choice([1, 2, 4, 30])]
    elif how == 6:
        raw[at : at + 8] = draw.choice([b"\0", b"\xff", b"\x7f", b"\x80"]) * 8
    else:
        width = draw.choice([1, 2, 4, 8])
        raw[at : at + width] = (draw.choice(NUMBERS) % 256**width).to_bytes(width, "little")
    return bytes(raw), bytes(raw) == content


# Reading ------------------------------------------------------------------------------------------


def _outcome(make, path: Path, is_whole: bool, expected=None) -> str:
    refusal = None
    try:
        dataset = make()
    except LoaderxError as error:
        refusal = error
    if refusal is not None:
        assert not is_whole, f"refused although it is as it was: {refusal}"
        named = not isinstance(refusal, FileError) or path.name in str(refusal)
        assert named, f"the message does not name {path}: {refusal}"
        return "refused"
    records = [_record(dataset, index, path) for index in range(len(dataset))]
    if None not in records and expected is not None:
        _compare(records, expected())
    assert not (is_whole and None in records)
    _check_batches(dataset, records)
    return "refused" if None in records else "data"


def _record(dataset: Dataset, index: int, path: Path):
    """A record, or None if it is refused."""
    try:
        return dataset[index]
    except RecordError as error:
        refusal = error
    assert isinstance(refusal.__cause__, LoaderxError), repr(refusal.__cause__)
    assert path.name in str(refusal), f"the message does not name {path}: {refusal}"
    return None


def _check_batches(dataset: Dataset, records: list) -> None:
    """What is read together is what is read alone."""
    good = [index for index, one in enumerate(records) if one is not None][::-1]
    if not good:
        return
    together = list(dataset[np.array(good)].map(lambda one: one))
    for index, one in zip(good, together, strict=True):
        check_equal(one, records[index], f"record {index}")
    if len(good) == len(records) and can_be_stacked(records):
        for batch in dataset.batch(len(records)):
            check_equal(batch, stacked(records), "a batch")


def _compare(records: list, expected: list) -> None:
    assert len(records) == len(expected)
    for one, other in zip(records, expected, strict=True):
        for name, value in one.items():
            if isinstance(value, bytes):
                value = [value]
                want = other[name] if isinstance(other[name], bytes) else other[name].tolist()
                assert value == ([want] if isinstance(want, bytes) else want), name
            else:
                array = np.asarray(value).reshape(-1)
                want = other.get(name, array[:0])
                assert array.tobytes() == np.asarray(want).tobytes() or array.dtype == object
                if array.dtype == object:
                    assert array.tolist() == list(want)
