"""The results as a picture: a panel for each workload, a line for each loader.

    python plot.py RESULTS.json PICTURE.png

It needs Matplotlib and nothing of ours but the JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
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
    "tokens": "token rows from a memory map, batch 256",
    "images64": "64×64×3 images, crop, flip, normalise",
    "aug32": "32×32×3 images, crop, flip, colours, noise",
    "aug128": "128×128×3 images, crop, flip, colours, noise",
    "jpeg": "JPEG files, decode, crop, resize, flip",
    "gil": "pure Python per record, 2 workers",
    "transport": "8 MB batches (16 records) from one worker",
    "resume": "resume at 90 % of 10 million records",
    "parquet_text": "texts in Parquet, batch 256",
    "imagefolder": "JPEG files in class folders, decode, centre",
    "tfds": "PNG images of a TFDS folder, batch 256",
    "jsonl_pack": "JSON lines, tokenise, pack",
}


def short(x: float) -> str:
    for size, name in ((1e6, "M"), (1e3, "k")):
        if x >= size:
            return f"{x / size:.3g}{name}"
    return f"{x:.3g}"


def say(row: dict[str, Any]) -> str:
    """The figure, and the CPU time of a record, or of going on."""
    if row["unit"] == "s":
        used = row.get("cpu_s")
        return f"{seconds(row['value'])} ({seconds(used)})" if used else seconds(row["value"])
    used = row.get("cpu_us_per_record")
    return f"{short(row['value'])} ({short(used)} µs)" if used else short(row["value"])


def seconds(x: float) -> str:
    return f"{x * 1e3:.3g} ms" if x < 1 else f"{x:.3g} s"


def color(row: dict[str, Any]) -> str:
    return {OURS: BLUE, **dict.fromkeys(BY_HAND, DARK)}.get(row["contender"], GREY)


def panel(axes: Any, name: str, rows: list[dict[str, Any]]) -> None:
    """Fastest on top; for each loader its best variant filled, the others hollow."""
    lower = any(row.get("unit") == "s" for row in rows)
    loaders: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        loaders.setdefault(row["title"], []).append(row)

    def best(title: str) -> dict[str, Any] | None:
        done = [row for row in loaders[title] if row["status"] == "ok"]
        key = (lambda row: -row["value"]) if lower else (lambda row: row["value"])
        return max(done, key=key, default=None)

    def place(title: str) -> float:
        row = best(title)
        if row is None:
            return float("-inf")
        return float(-row["value"] if lower else row["value"])

    order = sorted(loaders, key=place)
    values = [row[end] for row in rows if row["status"] == "ok" for end in ("low", "high")]
    if not values:
        axes.axis("off")
        return
    left, right = min(values), max(values)
    span = max(right / left, 10)
    axes.set_xscale("log")
    if span < 30:  # a few labels between the powers of ten
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: short(x)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    room = (0.45, 0.06) if lower else (0.06, 0.45)  # for the labels, beside the fastest
    axes.set_xlim(left / span ** room[0], right * span ** room[1])
    for height, title in enumerate(order):
        top = best(title)
        if top is None:
            first = loaders[title][0]
            word = {"unsupported": "cannot", "unavailable": "not available", "invalid": "INVALID"}
            said = word.get(first["status"], "ERROR")
            axes.text(left, height, said, va="center", fontsize=7.5, color=RED, style="italic")
            continue
        done = [row for row in loaders[title] if row["status"] == "ok"]
        shade = color(top)
        points = [row["value"] for row in done]
        axes.plot([min(points), max(points)], [height] * 2, color=shade, lw=1.5, alpha=0.5)
        for row in done:
            if row is not top:
                axes.plot(
                    row["value"], height, "o", ms=5, mfc="white", mec=shade, mew=1.3, zorder=3
                )
        axes.plot([top["low"], top["high"]], [height] * 2, color=shade, lw=5, alpha=0.35)
        axes.plot(top["value"], height, "o", ms=7.5, color=shade, zorder=4)
        weight = "bold" if top["contender"] == OURS else "normal"
        axes.annotate(
            say(top),
            (top["low"] if lower else max(top["high"], *points), height),
            xytext=(-7 if lower else 7, 0),
            textcoords="offset points",
            ha="right" if lower else "left",
            va="center",
            fontsize=8,
            color=shade if shade != GREY else DARK,
            weight=weight,
        )
    axes.set_yticks(range(len(order)), order, fontsize=8)
    for label in axes.get_yticklabels():
        if label.get_text() == "loaderx":
            label.set(color=BLUE, weight="bold")
    axes.set_ylim(-0.7, len(order) - 0.3)
    direction = "←  seconds to the next batch" if lower else "records per second  →"
    axes.set_title(PANELS.get(name, name), fontsize=9.5, loc="left", weight="bold", color=DARK)
    axes.set_xlabel(direction, fontsize=7.5, color=DARK)
    axes.tick_params(axis="x", labelsize=7, colors=DARK)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#e6e8eb", lw=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def main() -> None:
    result = json.loads(Path(sys.argv[1]).read_text())
    found = list(dict.fromkeys(row["workload"] for row in result["rows"]))
    names = [name for name in PANELS if name in found]
    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    figure, grid = plt.subplots(lines, columns, figsize=(5.0 * columns, 3.0 * lines + 0.9))
    for axes in getattr(grid, "flat", [grid])[len(names) :] if len(names) > 1 else []:
        axes.axis("off")
    for name, axes in zip(names, getattr(grid, "flat", [grid]), strict=False):
        panel(axes, name, [row for row in result["rows"] if row["workload"] == name])
    about = result["about"]
    rounds = f"{about['rounds']} round{'s' * (about['rounds'] != 1)}"
    rough = "QUICK RUN, figures mean nothing — " if about["quick"] else ""
    figure.suptitle(
        f"{rough}loaderx beside its peers: {about['cores']} cores, Python {about['python']}, "
        f"median of {rounds} (band: lowest to highest), in brackets CPU time, logarithmic scales",
        fontsize=11,
        x=0.01,
        ha="left",
    )
    handles = [
        Line2D([], [], marker="o", ls="", color=BLUE, ms=7, label="loaderx"),
        Line2D([], [], marker="o", ls="", color=DARK, ms=7, label="by hand"),
        Line2D([], [], marker="o", ls="", color=GREY, ms=7, label="peer, its fastest variant"),
        Line2D([], [], marker="o", ls="", mfc="white", mec=GREY, ms=6, label="its other variant"),
    ]
    figure.legend(handles=handles, loc="lower right", ncols=4, fontsize=8.5, frameon=False)
    figure.tight_layout(rect=(0, 0.035, 1, 0.97))
    figure.savefig(sys.argv[2], dpi=110)


if __name__ == "__main__":
    main()
