"""Draws the pictures of the documentation, from what loaderx itself says.

    python docs/pictures/draw.py [FOLDER]

Those that end in ``.svg`` are written as text; `show.png` needs Pillow.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path

import numpy as np

import loaderx as lx
from loaderx import DataLoader, Dataset

INK, GREY, LINE, PAPER = "#26303b", "#66717d", "#c3cad2", "#ffffff"
BLUE, PALE = "#1f5fd0", "#e8effb"
COLOURS = ("#3b78d8", "#e2873c", "#4f9d69", "#a463b8", "#c9a227", "#3aa6a6", "#c4545b", "#8a6d4b")
SANS = "font-family='Helvetica, Arial, sans-serif'"
MONO = "font-family='DejaVu Sans Mono, Menlo, Consolas, monospace'"


class Picture:
    """An SVG file, shape by shape."""

    def __init__(self, width: int, height: int) -> None:
        self.size = width, height
        self._shapes: list[str] = []

    def box(
        self, x: float, y: float, width: float, height: float, fill: str, line: str = ""
    ) -> None:
        edge = f" stroke='{line}'" if line else ""
        self._shapes.append(
            f"<rect x='{x:g}' y='{y:g}' width='{width:g}' height='{height:g}' rx='3' "
            f"fill='{fill}'{edge}/>"
        )

    def text(
        self, x: float, y: float, words: str, *, size: int = 13, fill: str = INK,
        anchor: str = "start", font: str = SANS, bold: bool = False,
    ) -> None:  # fmt: skip
        weight = " font-weight='bold'" if bold else ""
        self._shapes.append(
            f"<text x='{x:g}' y='{y:g}' font-size='{size}' fill='{fill}' {font}{weight} "
            f"text-anchor='{anchor}' xml:space='preserve'>{escape(words)}</text>"
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, *, arrow: bool = False) -> None:
        end = " marker-end='url(#arrow)'" if arrow else ""
        self._shapes.append(
            f"<line x1='{x1:g}' y1='{y1:g}' x2='{x2:g}' y2='{y2:g}' stroke='{GREY}'{end}/>"
        )

    def save(self, path: Path) -> None:
        width, height = self.size
        arrow = (
            "<defs><marker id='arrow' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='8' "
            "markerHeight='8' orient='auto'>"
            f"<path d='M0 0 8 4 0 8z' fill='{GREY}'/></marker></defs>"
        )
        path.write_text(
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' "
            f"width='{width}' height='{height}'>{arrow}"
            f"<rect width='{width}' height='{height}' fill='{PAPER}'/>\n"
            + "\n".join(self._shapes)
            + "\n</svg>\n"
        )


# The path of a batch ----------------------------------------------------------------------------


def draw_batch(path: Path) -> None:
    steps = [
        ("step 7", "a number is all that", "a worker is given"),
        ("addresses", "epoch and index of", "its 256 rows, by formula"),
        ("gather", "one call copies the", "rows out of the source"),
        ("stages", "your functions, with", "each record's own draws"),
        ("buffer", "recycled and aligned,", "shared with the worker"),
        ("jax.Array", "takes the memory as it", "is, or copies to devices"),
    ]
    wide, gap, top = 128, 26, 62
    picture = Picture(24 * 2 + len(steps) * wide + (len(steps) - 1) * gap, 176)
    picture.text(24, 30, "The path of a batch", size=16, bold=True)
    for number, (name, *lines) in enumerate(steps):
        x = 24 + number * (wide + gap)
        picture.box(x, top, wide, 40, PALE, BLUE)
        picture.text(x + wide / 2, top + 25, name, anchor="middle", bold=True, fill=BLUE)
        for row, words in enumerate(lines):
            picture.text(
                x + wide / 2, top + 62 + 17 * row, words, size=11, anchor="middle", fill=GREY
            )
        if number:
            picture.line(x - gap + 3, top + 20, x - 3, top + 20, arrow=True)
    first = 24 + wide + gap
    last = first + 3 * (wide + gap) + wide
    picture.line(first, top + 94, last, top + 94)
    words = "in any thread or process, in any order, again after a failure: the same bytes"
    picture.text((first + last) / 2, top + 110, words, size=11, anchor="middle", fill=GREY)
    picture.save(path)


# One batch on 1, 2 and 4 hosts ------------------------------------------------------------------


def draw_hosts(path: Path) -> None:
    batches = Dataset.range(32).shuffle(seed=1).batch(8)
    cell, top = 44, 66
    picture = Picture(150 + 8 * cell + 270, 252)
    picture.text(24, 30, "One batch on 1, 2 and 4 hosts", size=16, bold=True)
    picture.text(150, 54, "step 2: records", size=11, fill=GREY)
    for row, hosts in enumerate((1, 2, 4)):
        y = top + row * 56
        picture.text(24, y + 25, f"{hosts} host{'s' if hosts > 1 else ''}")
        column = 0
        for host in range(hosts):
            with DataLoader(batches, shard=(host, hosts), engine="inline") as loader:
                rows = list(loader)[2].tolist()
            for record in rows:
                x = 150 + column * cell
                picture.box(x, y, cell - 4, 36, COLOURS[host], "")
                picture.text(x + 20, y + 23, str(record), anchor="middle", fill=PAPER, bold=True)
                column += 1
    note = (
        "the batch is global:|hosts take slices of it,|so its records do not|depend on their number"
    )
    for row, words in enumerate(note.split("|")):
        picture.text(150 + 8 * cell + 28, top + 36 + row * 20, words, size=12, fill=GREY)
    for host in range(4):
        picture.box(150 + host * 88, 230, 12, 12, COLOURS[host])
        picture.text(168 + host * 88, 241, f"host {host}", size=11, fill=GREY)
    picture.save(path)


# Packed rows ------------------------------------------------------------------------------------


def draw_packing(path: Path) -> None:
    lengths = np.random.default_rng(4).integers(3, 40, 28)
    documents = Dataset.from_source(
        [{"tokens": np.full(n, i, np.int32)} for i, n in enumerate(lengths)]
    )
    (batch,) = documents.pack({"tokens": 64}, window=28).batch(20)
    rows = batch["tokens_segment_ids"]  # 1, 2, ... for the documents of a row, 0 for padding
    cell, top = 9.5, 76
    picture = Picture(48 + int(64 * cell) + 150, top + 26 * len(rows) + 28)
    picture.text(24, 30, "Packed rows", size=16, bold=True)
    full = (rows > 0).mean()
    words = f"{len(lengths)} documents in {len(rows)} rows of 64 tokens, {full:.1%} full"
    picture.text(24, 56, words, size=12, fill=GREY)
    for number, ids in enumerate(rows):
        y = top + 26 * number
        for start, stop in _runs(ids):
            fill = COLOURS[int(ids[start]) - 1] if ids[start] else "#eef0f2"
            picture.box(24 + start * cell, y, (stop - start) * cell - 1.5, 20, fill)
            if ids[start] and stop - start > 2:
                x = 24 + (start + stop) / 2 * cell
                picture.text(x, y + 14, str(stop - start), size=10, anchor="middle", fill=PAPER)
    x = 24 + 64 * cell + 18
    for row, words in enumerate(("numbers: tokens of", "a document; grey:", "padding")):
        picture.text(x, top + 14 + 18 * row, words, size=11, fill=GREY)
    picture.save(path)


def _runs(ids: np.ndarray) -> Iterator[tuple[int, int]]:
    ends = [*(np.flatnonzero(np.diff(ids)) + 1).tolist(), len(ids)]
    start = 0
    for end in ends:
        yield start, end
        start = end


# Statistics, with what they mean ----------------------------------------------------------------


def draw_stats(path: Path) -> None:
    def smooth(record: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        image = record["image"].astype(np.float32)
        return {**record, "image": (image + np.roll(image, 1, 0) + np.roll(image, 1, 1)) / 3}

    images = np.random.default_rng(0).integers(0, 256, (4096, 64, 64, 3), np.uint8)
    train = Dataset.from_arrays(image=images, label=np.arange(4096) % 10)
    batches = train.shuffle(seed=0).map(smooth).batch(128).repeat(2)
    with DataLoader(batches, engine="threads", num_workers=2) as loader:
        for batch in loader:
            for _ in range(4):  # the work of a training step
                np.square(batch["image"]).sum()
        text = str(loader.stats())
    notes = {
        "waited for": "how long the loop stood still: near 0 %, loading is hidden behind your step",
        "engine": 'what ran, and why: with engine="auto" it says what was measured',
        "time per stage": "seconds of all workers together: begin with the largest",
        "order": "working out which records are due",
        "source": "reading them",
        "epoch": "the last epochs, for a slow first one (cold files, compilation)",
    }
    lines = text.splitlines()
    picture = Picture(1130, 66 + 22 * len(lines) + 16)
    picture.text(24, 30, "print(loader.stats())", size=16, bold=True, font=MONO)
    for number, line in enumerate(lines):
        y = 66 + 22 * number
        picture.text(24, y, line, size=12, font=MONO)
        note = _note(line, notes)
        if note:
            picture.text(620, y, f"← {note}", size=12, fill=BLUE)
    picture.save(path)


def _note(line: str, notes: dict[str, str]) -> str:
    words = line.split()
    for start, note in notes.items():
        if line.startswith(start) or words[-1:] == [start]:
            return note
    return ""


# A batch as the model sees it -------------------------------------------------------------------


def draw_show(path: Path) -> None:
    side = np.linspace(-1, 1, 48, dtype=np.float32)
    x, y = np.meshgrid(side, side)
    shapes: list[tuple[str, Callable[[], np.ndarray]]] = [
        ("disc", lambda: np.hypot(x, y) < 0.7),
        ("square", lambda: np.maximum(abs(x), abs(y)) < 0.6),
        ("ring", lambda: abs(np.hypot(x, y) - 0.6) < 0.15),
        ("cross", lambda: np.minimum(abs(x), abs(y)) < 0.2),
    ]
    names = [name for name, _ in shapes]
    colours = np.random.default_rng(0).integers(90, 256, (24, 1, 1, 3))
    masks = np.stack([shapes[number % 4][1]() for number in range(24)])
    images = (masks[..., None] * colours).astype(np.uint8)
    batch = next(
        iter(Dataset.from_arrays(image=images, label=np.arange(24) % 4).shuffle(seed=0).batch(12))
    )
    lx.show(batch, classes={"label": names}).save(str(path))


PICTURES = {
    "batch.svg": draw_batch,
    "hosts.svg": draw_hosts,
    "packing.svg": draw_packing,
    "stats.svg": draw_stats,
    "show.png": draw_show,
}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for name, draw in PICTURES.items():
        draw(folder / name)


if __name__ == "__main__":
    main()
