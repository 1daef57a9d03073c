"""What the workloads on files have in common: where the files are, and functions on their records.

As in `suite.workloads`, NumPy is all that is needed to import this.  `suite.file_data` writes the
files, `suite.file_checks` looks at what was read.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from format_rows.image_folder import files
from format_rows.tfds import data_source

from suite.workloads import Array, Job, single_threaded_opencv

# Texts --------------------------------------------------------------------------------------------

VOCABULARY = 5_000


@cache
def vocabulary() -> list[str]:
    """Words of two to nine letters, the same in every process."""
    rng = np.random.default_rng(5)
    letters = rng.integers(97, 123, (2 * VOCABULARY, 9), np.uint8)
    lengths = rng.integers(2, 10, len(letters)).tolist()
    words = [row[:n].tobytes().decode() for row, n in zip(letters, lengths, strict=True)]
    return list(dict.fromkeys(words))[:VOCABULARY]


def texts(seed: int, count: int, fewest: int, most: int) -> Iterator[str]:
    """Texts of so many words; the first two say which text it is.

    Spaces at the end make the number of bytes a multiple of eight: then the sum of the 64-bit words
    of many texts does not depend on their order.
    """
    words = vocabulary()
    rng = np.random.default_rng(seed)
    for number in range(count):
        chosen = rng.integers(0, VOCABULARY, int(rng.integers(fewest, most + 1)))
        chosen[:2] = divmod(number, VOCABULARY)
        text = " ".join([words[i] for i in chosen.tolist()])
        yield text + " " * (-len(text) % 8)


def parquet_files(job: Job) -> list[str]:
    return [str(path) for path in sorted((job.data / "parquet_text" / "text").glob("*.parquet"))]


def read_parquet(job: Job) -> Any:
    """The whole table in memory, in one piece: of many, pyarrow joins the pieces for each take."""
    import pyarrow.parquet as pq

    return pq.read_table(parquet_files(job)).combine_chunks()


def take_rows(table: Any, ix: Array) -> dict[str, Any]:
    """A batch of rows of pyarrow's: texts as `str`."""
    taken = table.take(ix)
    return {"text": taken["text"].to_pylist(), "label": taken["label"].to_numpy()}


# Images in class folders --------------------------------------------------------------------------

SHORTER_SIDE, CENTRE, CLASSES = 256, 224, 16


def image_folder(job: Job) -> Path:
    return job.data / "imagefolder" / "images"


def image_files(job: Job) -> list[tuple[str, int]]:
    """Paths and the numbers of their classes."""
    return files(job.data / "imagefolder")


def central_square(height: int, width: int) -> tuple[int, int, int]:
    """top, left, side of what is the centre once the shorter side has been resized."""
    side = round(min(height, width) * CENTRE / SHORTER_SIDE)
    return (height - side) // 2, (width - side) // 2, side


def centre_with_opencv(path: str) -> Array:
    """Reads, decodes, crops and resizes one image."""
    return centre_of_jpeg(np.fromfile(path, np.uint8))


def centre_of_jpeg(data: Array) -> Array:
    """Without antialiasing, which is OpenCV's default: means of areas take five times as long."""
    cv2 = single_threaded_opencv()
    image = cv2.imdecode(data, cv2.IMREAD_COLOR_RGB)
    top, left, side = central_square(*image.shape[:2])
    part = image[top : top + side, left : left + side]
    made: Array = cv2.resize(part, (CENTRE, CENTRE), interpolation=cv2.INTER_LINEAR)
    return made


def image_record(file: tuple[str, int]) -> dict[str, Any]:
    return {"image": centre_with_opencv(file[0]), "label": np.int32(file[1])}


# TFDS ---------------------------------------------------------------------------------------------

TFDS_NAME, TFDS_SHAPE, TFDS_SHARDS = "tiny_images", (32, 32, 3), 4


def tfds_folder(job: Job, file_format: str) -> Path:
    return job.data / "tfds" / file_format / TFDS_NAME / "1.0.0"


def tfds_source(job: Job) -> Any:
    """`tfds.data_source`, which reads ArrayRecord; decoded records by number."""
    return data_source(tfds_folder(job, "array_record"))


def write_array_record(job: Job) -> None:
    """The same records in ArrayRecord, written by its own library where that is installed."""
    from array_record.python.array_record_module import ArrayRecordWriter

    source, target = tfds_folder(job, "tfrecord"), tfds_folder(job, "array_record")
    info = json.loads((source / "dataset_info.json").read_text())
    made = target / "dataset_info.json"
    if made.exists() and json.loads(made.read_text())["splits"] == info["splits"]:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    # Another contender may do the same at this moment.
    part = Path(tempfile.mkdtemp(dir=target.parent))
    for shard in sorted(source.glob("*.tfrecord-*")):
        name = shard.name.replace(".tfrecord-", ".array_record-")
        writer = ArrayRecordWriter(str(part / name), "group_size:1")
        for payload in tfrecord_payloads(shard):
            writer.write(payload)
        writer.close()
    shutil.copy(source / "features.json", part)
    info["fileFormat"] = "array_record"
    (part / "dataset_info.json").write_text(json.dumps(info))
    shutil.rmtree(target, ignore_errors=True)
    try:
        os.rename(part, target)
    except OSError:  # the other one was first
        shutil.rmtree(part)


def tfrecord_payloads(path: Path) -> Iterator[bytes]:
    data, place = path.read_bytes(), 0
    while place < len(data):
        (length,) = struct.unpack_from("<Q", data, place)
        yield data[place + 12 : place + 12 + length]
        place += length + 16


# JSON lines ---------------------------------------------------------------------------------------

ROW, WINDOW = 1_024, 2_000
"""Tokens of a packed row; documents that are packed together."""


def json_lines(job: Job) -> str:
    return str(job.data / "jsonl_pack" / "documents.jsonl")


@cache
def token_numbers() -> dict[str, int]:
    """From 1 on: 0 is padding."""
    return {word: number for number, word in enumerate(vocabulary(), 1)}


def tokenise(text: str) -> Array:
    """One token for each word."""
    return np.array([*map(token_numbers().__getitem__, text.split())], np.int32)


def tokenise_line(line: bytes) -> Array:
    return tokenise(json.loads(line)["text"])


class Lines:
    """The lines of a file by number."""

    def __init__(self, path: str) -> None:
        self.path = path
        with open(path, "rb") as file:
            self.bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        ends = np.flatnonzero(np.frombuffer(self.bytes, np.uint8) == ord("\n"))
        self.places = [0, *(ends + 1).tolist()]

    def __len__(self) -> int:
        return len(self.places) - 1

    def __getitem__(self, index: int) -> bytes:
        return self.bytes[self.places[index] : self.places[index + 1]]

    def __reduce__(self) -> tuple[type[Lines], tuple[str]]:
        return Lines, (self.path,)

    def __repr__(self) -> str:  # it becomes part of a checkpoint of Grain's
        return "Lines"


@cache
def lines_of(path: str) -> Lines:
    return Lines(path)
