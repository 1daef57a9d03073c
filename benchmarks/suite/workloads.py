"""What is measured: the workloads, and the functions on records that every contender uses.

Everything here needs NumPy alone, so that it runs in every contender's environment.  What looks
random in a transform is a pure function of the record's number (`draws`), so that all
contenders must make the same bytes, in whatever order they deliver them.  The exceptions are
`aug32` and `aug128`, where every contender draws numbers of its own (`suite.augmented`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Record = dict[str, Any]


METHOD = 3
"""Raise it when figures would change: how it is measured, or what a contender does."""


@dataclass(frozen=True, slots=True)
class Workload:
    """``does`` is the name of the function that a contender defines for it."""

    name: str
    title: str
    does: str
    batch_size: int
    records: int
    quick_records: int
    seconds: float = 3.0
    """About how long one measurement should take, its start aside."""
    unit: str = "records/s"
    least: int = 8
    """The fewest batches of a stream."""
    shuffled: bool = True
    own_draws: bool = False
    """Every contender draws its own random numbers: effects are compared, not bytes."""
    cold: bool = False
    """One pass, from a web server: nothing may be left of an earlier one."""
    limit: str = "numpy_by_hand"
    """The contender that the others are compared with, as what could be reached."""


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            "mnist128",
            "28×28 images in memory, shuffled, batch 128",
            "arrays",
            128,
            60_000,
            6_000,
        ),
        Workload(
            "mnist1024",
            "28×28 images in memory, shuffled, batch 1024",
            "arrays",
            1024,
            60_000,
            16_384,
            least=4,
        ),
        Workload(
            "transform",
            "the same, batch 128, each record scaled to float32",
            "transform",
            128,
            60_000,
            4_096,
        ),
        Workload(
            "step",
            "28×28 images in memory, shuffled, batch 128, each batch a training step in JAX",
            "step",
            128,
            57_344,  # whole batches, in a quarter and a sixteenth of it too: one compiled step
            4_096,
            unit="steps/s",
            limit="jax_by_hand",
        ),
        Workload(
            "tokens",
            "200,000 rows of 512 int32 tokens in a memory map, shuffled, batch 256",
            "tokens",
            256,
            200_000,
            8_192,
        ),
        Workload(
            "jpeg",
            "JPEG files, decode, random resized crop to 224×224, flip, batch 64",
            "jpeg",
            64,
            1_024,
            256,
            least=4,
        ),
        Workload(
            "gil",
            "0.5 ms of pure Python per record, 2 workers, batch 32",
            "gil",
            32,
            16_384,
            512,
        ),
        Workload(
            "transport",
            "8 MB batches (16 records) from one worker to the consumer",
            "transport",
            16,
            16_384,
            512,
            shuffled=False,
        ),
        Workload(
            "remote",
            "64 kB records behind HTTP, 50 ms a request, 100 MB/s in all, nothing cached, batch 32",
            "remote",
            32,
            4_096,
            256,
            cold=True,
        ),
        Workload(
            "resume",
            "go on at 90 % of a shuffled epoch of 10 million records",
            "resume",
            1_000,
            10_000_000,
            200_000,
            unit="s",
        ),
        Workload(
            "images64",
            "64×64×3 images, random crop to 56×56, flip, normalise, batch 256",
            "images",
            256,
            20_480,
            2_048,
            least=4,
        ),
        Workload(
            "aug32",
            "32×32×3 images: crop, flip, brightness, contrast, noise, batch 256",
            "aug32",
            256,
            20_480,
            2_048,
            least=4,
            own_draws=True,
        ),
        Workload(
            "aug128",
            "128×128×3 images: crop, flip, brightness, contrast, noise, batch 64",
            "aug128",
            64,
            4_096,
            512,
            least=4,
            own_draws=True,
        ),
        # Of files all records are read: as many as are measured.
        Workload(
            "parquet_text",
            "25,600 texts of 1.6 kB in Parquet, shuffled, batch 256",
            "parquet_text",
            256,
            25_600,
            1_024,
            least=100,
        ),
        Workload(
            "imagefolder",
            "JPEG files in class folders, decode, shorter side to 256, centre of 224×224, batch 64",
            "imagefolder",
            64,
            1_024,
            256,
            least=16,
        ),
        Workload(
            "tfds",
            "4,096 PNG images of 32×32×3 in a TFDS folder, decode, shuffled, batch 256",
            "tfds",
            256,
            4_096,
            1_024,
            least=16,
        ),
        Workload(
            "jsonl_pack",
            "16,000 documents in JSON lines, tokenise, pack into rows of 1,024, batch 32",
            "jsonl_pack",
            32,
            16_000,
            128,
            least=500,
        ),
    )
}

IN_MEMORY = {
    "arrays": ("image", "label"),
    "transform": ("image", "label"),
    "step": ("image", "label"),
    "images": ("image64", "label64"),
    "aug32": ("aug32", "label_aug32"),
    "aug128": ("aug128", "label_aug128"),
    "transport": ("blocks",),
    "resume": ("value",),
}
"""What a workload holds in memory.  It is loaded before the clock starts."""

_loaded: dict[str, tuple[int, Array]] = {}


@dataclass(frozen=True, slots=True)
class Job:
    """One measurement, as its contender sees it."""

    workload: str
    variant: str
    data: Path
    batch_size: int
    records: int
    epochs: int
    workers: int = 2
    url: str = ""
    """Where the folder of the workload is served, if it is."""

    def load(self, name: str) -> Array:
        """The first records of an array of the data, in memory; read once in a process."""
        records, found = _loaded.get(name, (-1, None))
        if found is None or records != self.records:
            _loaded.pop(name, None)
            found = self._read(name)
            _loaded[name] = self.records, found
        return found

    def _read(self, name: str) -> Array:
        if name == "value":
            return np.arange(self.records, dtype=np.int32)
        rows = BLOCKS if name == "blocks" else self.records
        return np.load(self.data / f"{name}.npy", mmap_mode="r")[:rows].copy()

    def preload(self) -> None:
        """Loads what is in memory from the first record on, so that no clock sees it."""
        for name in IN_MEMORY.get(self.workload, ()):
            self.load(name)

    def open(self, name: str) -> Array:
        """The first records of an array of the data, mapped."""
        return np.load(self.data / f"{name}.npy", mmap_mode="r")[: self.records]

    def part_rows(self) -> int:
        """The records of one file of `remote`."""
        return len(np.load(self.data / "remote" / "npy" / "part-000.npy", mmap_mode="r"))

    def part_names(self, suffix: str) -> list[str]:
        """The files of `remote` that hold the first records, in one of its forms."""
        return [f"part-{n:03}.{suffix}" for n in range(self.records // self.part_rows())]

    def parts(self) -> Iterator[tuple[str, Array, Array]]:
        """The files of `remote` as they were made, to write others from: name, data, labels."""
        start = 0
        for name in self.part_names("npy"):
            rows = np.load(self.data / "remote" / "npy" / name)
            labels = np.arange(start, start + len(rows), dtype=np.int32)
            yield name.removesuffix(".npy"), rows, labels
            start += len(rows)

    def paths(self) -> list[str]:
        """The files of the JPEG folder."""
        return [str(self.data / "jpeg" / f"{number:05}.jpg") for number in range(self.records)]


class UnsupportedError(Exception):
    """What a contender cannot do; the text says why."""


# Random numbers that belong to a record -----------------------------------------------------------

CROP, IMAGE = 56, 64
JPEG_SIZE, JPEG_SHAPE = 224, (450, 500)
MOST = 1 << 15


@cache
def draws() -> Array:
    """Numbers in [0, 1), five for each record: one table, the same in every process."""
    x = np.arange(MOST * 5, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(40)).reshape(MOST, 5) / 2.0**24


@cache
def crops() -> Array:
    """For 64×64 images: top, left, flipped?"""
    u = draws()
    found = np.empty((MOST, 3), np.int32)
    found[:, :2] = u[:, :2] * (IMAGE - CROP + 1)
    found[:, 2] = u[:, 2] < 0.5
    return found


@cache
def boxes() -> Array:
    """For JPEG files: top, left, height, width, flipped?  Area and aspect as in Inception."""
    u = draws()
    height, width = JPEG_SHAPE
    area = height * width * (0.08 + 0.92 * u[:, 0])
    aspect = np.exp(np.log(3 / 4) + u[:, 1] * (np.log(4 / 3) - np.log(3 / 4)))
    found = np.empty((MOST, 5), np.int32)
    found[:, 2] = np.clip(np.rint(np.sqrt(area / aspect)), 1, height)
    found[:, 3] = np.clip(np.rint(np.sqrt(area * aspect)), 1, width)
    found[:, 0] = u[:, 2] * (height - found[:, 2] + 1)
    found[:, 1] = u[:, 3] * (width - found[:, 3] + 1)
    found[:, 4] = u[:, 4] < 0.5
    return found


# Functions on records, and the same on batches ----------------------------------------------------

INVERSE = np.float32(1 / 255)
GAIN = (np.float32([1 / 58.4, 1 / 57.1, 1 / 57.4]).view(np.uint32) & 0xFFFFFF00).view(np.float32)
"""Of 16 bits: times a byte it is exact, so that a fused multiply-add makes the same bytes."""
BIAS = np.float32([-2.1, -2.0, -1.8])


def scale(record: Record) -> Record:
    """uint8 to float32 in [0, 1], for a record or a batch."""
    return {"image": record["image"].astype(np.float32) * INVERSE, "label": record["label"]}


def augment(record: Record) -> Record:
    """Crop, flip and normalise one image."""
    top, left, flipped = crops()[record["label"]]
    image = record["image"][top : top + CROP, left : left + CROP]
    if flipped:
        image = image[:, ::-1]
    return {"image": image.astype(np.float32) * GAIN + BIAS, "label": record["label"]}


def crop_into(cut: Array, images: Array, boxes: Iterable[Iterable[int]]) -> None:
    """Crops each image at its top and left, and flips it if its third number is not 0.

    One channel after the other where it is flipped: NumPy copies runs of 56 bytes faster than
    pixels of three.
    """
    side = cut.shape[1]
    for row, (top, left, flipped) in enumerate(boxes):
        image = images[row, top : top + side, left : left + side]
        if flipped:
            image = image[:, ::-1]
            for channel in range(3):
                cut[row, ..., channel] = image[..., channel]
        else:
            cut[row] = image


IN_CACHE = 8
"""Images whose pixels, as floats, stay in the cache of a core from one operation to the next."""


@cache
def factors() -> tuple[Array, Array]:
    pixels = CROP * CROP * IN_CACHE
    return np.tile(GAIN, pixels), np.tile(BIAS, pixels)


def augment_batch(batch: Record, new: Callable[..., Array] = np.empty) -> Record:
    """The same for a whole batch, as fast as we know how in NumPy.

    Cropping one image is a small copy; the arithmetic is done on a few images at a time, in place.
    """
    images, boxes = batch["image"], crops()[batch["label"]].tolist()
    out = new((len(images), CROP, CROP, 3), np.float32)
    cut = np.empty((IN_CACHE, CROP, CROP, 3), np.uint8)
    gain, bias = factors()
    for start in range(0, len(images), IN_CACHE):
        some = slice(start, start + IN_CACHE)
        part = cut[: len(boxes[some])]
        crop_into(part, images[some], boxes[some])
        pixels = out[some].reshape(-1)
        pixels[...] = part.reshape(-1)
        pixels *= gain[: len(pixels)]
        pixels += bias[: len(pixels)]
    return {"image": out, "label": batch["label"]}


def single_threaded_opencv() -> Any:
    """OpenCV, one thread for an image: the loaders share out the images."""
    import cv2

    cv2.setNumThreads(1)
    return cv2


def decode(path: str) -> Record:
    """Reads, decodes, crops, resizes and flips one JPEG file."""
    cv2 = single_threaded_opencv()
    label = int(path[-9:-4])
    image = cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_COLOR_RGB)
    top, left, height, width, flipped = boxes()[label].tolist()
    image = image[top : top + height, left : left + width]
    image = cv2.resize(image, (JPEG_SIZE, JPEG_SIZE), interpolation=cv2.INTER_LINEAR)
    if flipped:
        image = cv2.flip(image, 1)
    return {"image": image, "label": np.int32(label)}


TURNS = 8_000


def burn(number: Any, turns: int = TURNS) -> Record:
    """Half a millisecond of plain Python, which holds the interpreter's lock."""
    value = int(number)
    for _ in range(turns):
        value = (value * 1103515245 + 12345) & 0x7FFFFFFF
    return {"value": np.int64(value), "label": np.int32(number)}


LARGE = 1 << 19
BLOCKS = 64
FAR, PART = 1 << 16, 256
"""Of `remote`: the bytes of a record, and the records of a file."""
MIXED = 1024
"""Of `remote`: about so many records are mixed with each other."""


def stack(records: list[Record]) -> Record:
    """A batch of records, stacked with NumPy."""
    return {name: np.stack([record[name] for record in records]) for name in records[0]}
