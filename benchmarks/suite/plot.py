"""The results as a picture: a panel for each workload, a line for each loader.

Beside each line stand its figure and its CPU time, of a record or of going on.

    python plot.py RESULTS.json PICTURE.png

It needs Matplotlib and nothing of ours but the JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

OURS, BY_HAND = "loaderx_", ("numpy_by_hand", "jax_by_hand")
BLUE, GREY, DARK, RED = "#1f5fd0", "#9aa3ad", "#39424d", "#b3261e"
PANELS = {
    "mnist128": "28×28 images in memory, batch 128",
    "mnist1024": "28×28 images in memory, batch 1024",
    "transform": "… with a function per record, batch 128",
    "step": "a training step for each batch of 128",
    "tokens": "token rows from a memory map, batch 256",
    "images64": "64×64×3 images, crop, flip, normalise",
    "aug32": "32×32×3 images, crop, flip, colours, noise",
    "aug128": "128×128×3 images, crop, flip, colours, noise",
    "jpeg": "JPEG files, decode, crop, resize, flip",
    "gil": "pure Python per record, 2 workers",
    "transport": "8 MB batches (16 records) from one worker",
    "remote": "64 kB records behind HTTP, nothing cached",
    "resume": "resume at 90 % of 10 million records",
    "parquet_text": "texts in Parquet, batch 256",
    "imagefolder": "JPEG files in class folders, decode, centre",
    "tfds": "PNG images of a TFDS folder, batch 256",
    "jsonl_pack": "JSON lines, tokenise, pack",
}


COLUMNS = (1.19, 1.43)
"""Where the figures of a line end, in parts of a panel's width."""
SIDES, ENDS, BETWEEN = (1.6, 1.5), (0.95, 1.0), (3.1, 1.15)
"""Room beside, above and below all panels, and between two of them, in inches."""
Row = dict[str, Any]


def short(x: float) -> str:
    for size, name in ((1e6, "M"), (1e3, "k")):
        if x >= size:
            return f"{x / size:.3g}{name}"
    return f"{x:.3g}"


def figure_of(row: Row) -> str:
    return seconds(row["value"]) if row["unit"] == "s" else short(row["value"])


def cpu_of(row: Row) -> str:
    """CPU time of a record, or of going on."""
    if row["unit"] == "s":
        return seconds(row["cpu_s"]) if row.get("cpu_s") is not None else "-"
    used = row.get("cpu_us_per_record")
    return "-" if used is None else microseconds(used)


def microseconds(x: float) -> str:
    return f"{x / 1e3:.3g} ms" if x >= 1e3 else f"{x:.3g} µs"


def seconds(x: float) -> str:
    return f"{x * 1e3:.3g} ms" if x < 1 else f"{x:.3g} s"


def color(row: Row) -> str:
    return {OURS: BLUE, **dict.fromkeys(BY_HAND, DARK)}.get(row["contender"], GREY)


class Loader:
    """All variants of a loader on one workload."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self.done = [row for row in rows if row["status"] == "ok"]
        self.best = max(self.done, key=better, default=None)

    @property
    def place(self) -> float:
        return better(self.best) if self.best else float("-inf")


def better(row: Row) -> float:
    """More is better."""
    return float(-row["value"] if row["unit"] == "s" else row["value"])


def panel(axes: Any, name: str, rows: list[Row]) -> None:
    """Fastest on top; for each loader its best variant filled, the others hollow."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["title"], []).append(row)
    loaders = sorted((Loader(some) for some in found.values()), key=lambda one: one.place)
    values = [row[end] for row in rows if row["status"] == "ok" for end in ("low", "high")]
    if not values:
        axes.axis("off")
        return
    units = {row["unit"] for row in rows if row["status"] == "ok"}
    scale(axes, min(values), max(values))
    refused = [loader for loader in loaders if loader.best is None]
    loaders = loaders[len(refused) :]  # they come first: they have no place
    for height, loader in enumerate(loaders):
        assert loader.best is not None
        line(axes, height, loader, loader.best)
    head(axes, len(loaders), min(units))
    below(axes, refused)
    axes.set_yticks(range(len(loaders)), [one.rows[0]["title"] for one in loaders], fontsize=8)
    for label in axes.get_yticklabels():
        if label.get_text() == "loaderx":
            label.set(color=BLUE, weight="bold")
    axes.set_ylim(-0.7, len(loaders) - 0.3)
    axes.set_title(
        PANELS.get(name, name), fontsize=9.5, loc="left", weight="bold", color=DARK, pad=16
    )
    axes.tick_params(axis="x", labelsize=7, colors=DARK)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#e6e8eb", lw=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def scale(axes: Any, left: float, right: float) -> None:
    span = max(right / left, 10)
    axes.set_xscale("log")
    if span < 30:  # a few labels between the powers of ten
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: short(x)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(left / span**0.08, right * span**0.08)


def head(axes: Any, lines: int, unit: str) -> None:
    """What the columns are."""
    names = ("time", "CPU") if unit == "s" else (unit, "CPU/record")
    for place, text in zip(COLUMNS, names, strict=True):
        beside(axes, place, lines - 0.25, text, color=DARK, fontsize=7, va="bottom")
    direction = "←  seconds to the next batch" if unit == "s" else f"{unit}  →"
    axes.set_xlabel(direction, fontsize=7.5, color=DARK)


def beside(axes: Any, place: float, height: float, text: str, **how: Any) -> None:
    """Text in a column at the right of a panel."""
    across = axes.get_yaxis_transform()  # x in parts of the panel, y as the lines
    axes.text(place, height, text, transform=across, ha="right", **how)


def below(axes: Any, refused: list[Loader]) -> None:
    """Who has no line, under the panel."""
    words = {"unsupported": "cannot", "unavailable": "not available", "invalid": "INVALID"}
    said: dict[str, list[str]] = {}
    for loader in refused:
        row = loader.rows[0]
        said.setdefault(words.get(row["status"], "ERROR"), []).append(row["title"])
    lines = [f"{word}: {', '.join(sorted(titles))}" for word, titles in said.items()]
    text = "\n".join(part for one in lines for part in wrap(one, 84))
    how = {"fontsize": 7, "color": RED, "style": "italic", "va": "top"}
    axes.annotate(text, (-0.45, 0), (0, -32), "axes fraction", "offset points", **how)


def line(axes: Any, height: int, loader: Loader, best: Row) -> None:
    """The points of a loader, and the figures of its best variant."""
    shade = color(best)
    points = [row["value"] for row in loader.done]
    axes.plot([min(points), max(points)], [height] * 2, color=shade, lw=1.5, alpha=0.5)
    for row in loader.done:
        if row is not best:
            axes.plot(row["value"], height, "o", ms=5, mfc="white", mec=shade, mew=1.3, zorder=3)
    axes.plot([best["low"], best["high"]], [height] * 2, color=shade, lw=5, alpha=0.35)
    axes.plot(best["value"], height, "o", ms=7.5, color=shade, zorder=4)
    how = {
        "va": "center",
        "fontsize": 8,
        "color": shade if shade != GREY else DARK,
        "weight": "bold" if best["contender"] == OURS else "normal",
    }
    for place, text in zip(COLUMNS, (figure_of(best), cpu_of(best)), strict=True):
        beside(axes, place, height, text, **how)


def loaders_of(result: dict[str, Any], workload: str) -> int:
    """How many lines the panel of a workload has."""
    rows = [row for row in result["rows"] if row["workload"] == workload]
    return len({row["title"] for row in rows if row["status"] == "ok"})


def arrange(figure: Any, lines: int, columns: int) -> None:
    """Room for the names at the left, the figures at the right, and what stands below."""
    width, height = figure.get_size_inches()
    (left, right), (top, bottom) = SIDES, ENDS
    wide = (width - left - right - (columns - 1) * BETWEEN[0]) / columns
    high = (height - top - bottom - (lines - 1) * BETWEEN[1]) / lines
    figure.subplots_adjust(
        left=left / width,
        right=1 - right / width,
        top=1 - top / height,
        bottom=bottom / height,
        wspace=BETWEEN[0] / wide,
        hspace=BETWEEN[1] / high,
    )


def main() -> None:
    result = json.loads(Path(sys.argv[1]).read_text())
    found = list(dict.fromkeys(row["workload"] for row in result["rows"]))
    names = [*(name for name in PANELS if name in found), *(n for n in found if n not in PANELS)]
    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    most = max(loaders_of(result, name) for name in names)
    high = 0.22 * most + BETWEEN[1] + 0.2
    figure, grid = plt.subplots(lines, columns, figsize=(6.0 * columns, high * lines + 0.9))
    for axes in getattr(grid, "flat", [grid])[len(names) :] if len(names) > 1 else []:
        axes.axis("off")
    for name, axes in zip(names, getattr(grid, "flat", [grid]), strict=False):
        panel(axes, name, [row for row in result["rows"] if row["workload"] == name])
    about = result["about"]
    rounds = f"{about['rounds']} round{'s' * (about['rounds'] != 1)}"
    rough = "QUICK RUN, figures mean nothing — " if about["quick"] else ""
    figure.suptitle(
        f"{rough}loaderx beside its peers: {about['cores']} cores, Python {about['python']}, "
        f"median of {rounds} (band: lowest to highest), CPU time beside it, logarithmic scales",
        fontsize=11,
        x=0.01,
        y=1 - 0.15 / figure.get_size_inches()[1],  # inches from the top, however many lines
        ha="left",
        va="top",
    )
    handles = [
        Line2D([], [], marker="o", ls="", color=BLUE, ms=7, label="loaderx"),
        Line2D([], [], marker="o", ls="", color=DARK, ms=7, label="by hand"),
        Line2D([], [], marker="o", ls="", color=GREY, ms=7, label="peer, its fastest variant"),
        Line2D([], [], marker="o", ls="", mfc="white", mec=GREY, ms=6, label="its other variant"),
    ]
    figure.legend(handles=handles, loc="lower right", ncols=4, fontsize=8.5, frameon=False)
    arrange(figure, lines, columns)
    figure.savefig(sys.argv[2], dpi=110)


if __name__ == "__main__":
    main()
