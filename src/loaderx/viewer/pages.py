"""HTML of what is shown: pure functions, and everything that comes from data goes through `tag`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from string import Template
from typing import Any
from urllib.parse import urlencode

import numpy as np

from loaderx.display.html import tag
from loaderx.display.picture import Cell, images_of, single
from loaderx.display.show import png_url, show_records
from loaderx.display.values import plain_text, value_text
from loaderx.plans.records import Records
from loaderx.survey.columns import Column, values_text
from loaderx.tree import Array
from loaderx.viewer.looking import packed_names, told

Leaves = Mapping[str, object]
Classes = Mapping[str, Sequence[str]]

_MOST_CELLS = 512  # of an array
_MOST_TEXT = 20_000  # characters
_MOST_RECORDS = 256
_MOST_BARS, _MOST_CLASSES = 24, 40
_MOST_VALUES = 1 << 20  # that a histogram is made from
_COLOURS = 8  # of segments


@cache
def data_file(name: str) -> str:
    """The text of a file of this package."""
    with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
        return file.read()


def page(title: str, *body: str) -> str:
    """A whole page."""
    parts = {"title": tag("title", title), "body": "".join(body)}
    return Template(data_file("page.html")).substitute(parts)


def address(place: str, **query: object) -> str:
    """The address of another page."""
    return f"{place}?{urlencode(query)}" if query else place


def note(text: str, *inside: str) -> str:
    """A remark."""
    return tag("p", text, *inside, style="note")


def problem(text: str, *before: str) -> str:
    """What cannot be shown, and why."""
    return tag("p", "", *before, tag("span", text), style="problem", role="alert")


def tabs(style: str, shown: object, titles: Mapping[str, str]) -> str:
    """Links to other pages, by address."""
    links = [
        tag("a", plain_text(title), href=place, aria_current="page" if title == shown else None)
        for place, title in titles.items()
    ]
    return tag("nav", "", *links, style=style) if len(links) > 1 else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]], style: str = "") -> str:
    """A table of cells that are HTML."""
    titles = tag("tr", "", *(tag("th", plain_text(title), scope="col") for title in head))
    lines = (tag("tr", "", *(tag("td", "", cell) for cell in row)) for row in rows)
    made = tag("table", "", tag("thead", "", titles), tag("tbody", "", *lines), style=style)
    return tag("div", "", made, style="wide")


def walk(
    name: str, at: int, count: int | None, by: int = 1, place: str = "./", *, ends: bool, **of: str
) -> str:
    """Links to the next steps, a number to type, and a slider, which needs the script.

    ``ends``: there is nothing after ``count``.  Steps of a loader go on, with further epochs.
    """
    last = None if count is None else max(0, count - 1)
    most = last if ends else None
    to = max(0, at - by), at + by if most is None else min(at + by, max(at, most))
    links = [
        tag("a", arrow, href=address(place, **of, **{name: other}), rel=rel, style="step")
        if other != at
        else tag("span", arrow, style="step")
        for arrow, other, rel in zip("\u2190\u2192", to, ("prev", "next"), strict=True)
    ]
    hidden = [tag("input", "", type="hidden", name=key, value=value) for key, value in of.items()]
    typed: dict[str, Any] = {"min": 0, "value": at, "aria_label": name}
    label = tag("label", name, tag("input", "", type="number", name=name, max=most, **typed))
    of_all = tag("span", "" if count is None else f"of {count:,}")
    form = tag("form", "", *hidden, label, of_all, tag("button", "Go"), action=place)
    slider = tag("input", "", type="range", max=last, step=by, data_name=name, **typed)
    walked = tag("div", "", links[0], form, links[1], style="walk", data_live="walk")
    return tag("nav", "", walked, slider if last else "", style="steps")


# Records ----------------------------------------------------------------------------------------


def leaf(path: str, value: object, classes: Sequence[str] = (), *, whole: bool = False) -> str:
    """A leaf of a record: text, a picture, or numbers."""
    if value is None:
        return tag("span", "missing", style="faint")
    if isinstance(value, str):
        most = _MOST_TEXT if whole else _MOST_CELLS
        lines = "\n".join(map(plain_text, value[:most].split("\n")))
        more = f" \u2026 {len(value) - most:,} more characters" if len(value) > most else ""
        return tag("pre", lines + more)
    short = tag("span", value_text(value, classes))
    if not (whole and isinstance(value, np.ndarray) and value.ndim and value.dtype.kind in "buif"):
        return short
    with contextlib.suppress(Exception):  # no Pillow, or no image: then there are the numbers
        (image,) = images_of(path, value[None])
        png = single(Cell([image], np.empty((0, 4)), []))
        return tag("img", "", src=png_url(png), alt="") + short
    cells = " ".join(map(value_text, value.ravel()[:_MOST_CELLS]))
    return short + tag("pre", cells + " \u2026" * (value.size > _MOST_CELLS))


def packed(row: Array, segments: Array) -> str:
    """A packed row: its first cells, in the colours of the records that lie there."""
    row, segments = row[:_MOST_CELLS], segments[:_MOST_CELLS]
    starts = np.flatnonzero(np.diff(segments, prepend=segments[:1] - 1)).tolist()
    spans = []
    for start, stop in zip(starts, [*starts[1:], len(row)], strict=True):
        number = int(segments[start])
        style = f"s{(number - 1) % _COLOURS + 1}" if number else "s0"
        title = f"segment {number - 1}" if number else "padding"
        spans.append(
            tag("span", " ".join(map(value_text, row[start:stop])), style=style, title=title)
        )
    return tag("div", "", *spans, style="packed")


def listing(
    found: Mapping[int, Leaves],
    problems: Mapping[int, str],
    classes: Classes,
    href: Callable[[int], str],
) -> str:
    """Records as a grid of images or a table, and what cannot be read."""
    made = [problem(why, tag("a", f"{n:,}", href=href(n))) for n, why in problems.items()]
    grid = ""
    if found:
        try:
            figures = show_records([*found.values()], classes, len(found)).figures()
        except Exception as error:  # no Pillow, or odd arrays: then there is the table
            figures, made = [], [*made, note(told(error))]
        has_all = len(figures) == len(found)  # else it is not known whose they are
        grid = _grid(figures, [*map(href, found)]) if has_all else _table(found, classes, href)
    return grid + "".join(made)


def _grid(figures: Iterable[tuple[bytes, list[str]]], places: Iterable[str]) -> str:
    cells = []
    for (png, caption), place in zip(figures, places, strict=True):
        image = tag("img", "", src=png_url(png), alt="")
        lines = (tag("span", line, title=line) for line in caption)
        cells.append(tag("a", "", image, *lines, href=place))
    return tag("div", "", *cells, style="grid")


def _table(found: Mapping[int, Leaves], classes: Classes, href: Callable[[int], str]) -> str:
    known = dict.fromkeys(path for leaves in found.values() for path in leaves)
    paths = [path for path in known if path not in packed_names(known)]
    rows = []
    for number, leaves in found.items():
        cells = [tag("a", f"{number:,}", href=href(number))]
        for path in paths:
            segments = np.asarray(leaves.get(f"{path}_segment_ids"))
            is_packed = segments.ndim == 1 and path in leaves
            cells.append(
                packed(np.asarray(leaves[path]), segments)
                if is_packed
                else leaf(path, leaves.get(path), classes.get(path, ()))
            )
        rows.append(cells)
    return table(["", *paths], rows, "records")


def change(before: Leaves | None, after: Leaves, classes: Classes) -> str:
    """A record before and after a stage; what it leaves alone is only named.

    Without a ``before``, it is shown as it is.
    """
    sides = [after] if before is None else [before, after]
    paths = dict.fromkeys(path for side in sides for path in side)
    same = [path for path in paths if before and _is_same(before.get(path), after.get(path))]
    rows = [
        [
            tag("b", plain_text(path)),
            *(
                leaf(path, side[path], classes.get(path, ()), whole=True) if path in side else ""
                for side in sides
            ),
        ]
        for path in paths
        if path not in same
    ]
    head = ["leaf", *(["before", "after"] if before is not None else ["value"])]
    kept = note(f"unchanged: {', '.join(map(plain_text, same))}") if same else ""
    return (table(head, rows, "change") if rows else "") + kept


def _is_same(one: object, other: object) -> bool:
    if one is None or other is None:
        return one is other
    a, b = np.asarray(one), np.asarray(other)
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    return repr(one) == repr(other) if a.dtype == object else a.tobytes() == b.tobytes()


def origins(found: Records, step: int, first: int = 0) -> str:
    """The records of a step, each with a link to what the stages do to it."""
    columns = found[:_MOST_RECORDS].columns()
    columns["file"] = [file and os.path.basename(str(file)) for file in columns.get("file", [])]
    columns = {name: cells for name, cells in columns.items() if cells}
    rows = []
    for number, cells in enumerate(zip(*columns.values(), strict=True), first):
        row, *others = ("" if cell is None else plain_text(str(cell)) for cell in cells)
        place = address("stages", step=step, record=number)
        rows.append([tag("a", row, href=place), *(tag("span", cell) for cell in others)])
    more = len(found) - _MOST_RECORDS
    return table([*columns], rows, "origins") + (note(f"and {more:,} more") if more > 0 else "")


def stage(title: str, *inside: str) -> str:
    """A stage that a record passes."""
    return tag("section", "", tag("h3", title), *inside, style="passed")


# The facts of columns ---------------------------------------------------------------------------


def columns(some: Sequence[Column]) -> str:
    """Each column with its facts, and a histogram."""
    return tag("div", "", *map(_column, some), style="columns")


def _column(column: Column) -> str:
    facts = column.facts()
    values = values_text(facts) if column.counts is None else ""
    missing = f"{column.missing:,} missing" if column.missing else ""
    about = note(" \u00b7 ".join(filter(None, (facts["type"], values, missing))))
    numbers = [one.ravel() for one in column.numbers if one.size]
    if column.counts is not None:
        chart = _class_bars(column.counts)
    elif len({*column.lengths}) > 1 or not numbers:
        chart = _histogram(np.array(column.lengths), "length")
    else:
        each = np.concatenate(numbers)
        chart = _histogram(each[:: 1 + len(each) // _MOST_VALUES], "value")
    return tag("section", "", tag("h3", plain_text(column.name) or "record"), about, chart)


def _histogram(values: Array, what: str) -> str:
    if not values.size or values.min() == values.max():
        return ""
    least, most = float(values.min()), float(values.max())
    is_whole = values.dtype.kind in "biu" and most - least < _MOST_BARS
    edges = np.arange(least, most + 2) if is_whole else np.linspace(least, most, _MOST_BARS + 1)
    counts, edges = np.histogram(values.astype(np.float64), edges)
    bars = []
    for number, height in enumerate(40 * counts / counts.max()):
        ends = " to ".join(map(value_text, edges[number : number + (1 if is_whole else 2)]))
        size = {"x": number + 0.06, "y": 40 - height, "width": 0.88, "height": height}
        bars.append(tag("rect", "", tag("title", f"{what} {ends}: {counts[number]:,}"), **size))
    drawn = _svg(f"0 0 {len(counts)} 40", *bars)
    axis = (tag("span", one) for one in (value_text(least), what, value_text(most)))
    return tag("div", "", drawn, tag("div", "", *axis, style="axis"), style="histogram")


def _class_bars(counts: Mapping[str, int]) -> str:
    most = max(1, *counts.values())
    rows = []
    for name, count in list(counts.items())[:_MOST_CLASSES]:
        bar = _svg("0 0 100 8", tag("rect", "", width=100 * count / most, height=8))
        rows.append([tag("span", plain_text(name)), bar, tag("span", f"{count:,}")])
    more = len(counts) - _MOST_CLASSES
    return table([], rows, "classes") + (note(f"and {more:,} more") if more > 0 else "")


def _svg(box: str, *inside: str) -> str:
    return tag("svg", "", *inside, viewBox=box, preserveAspectRatio="none", role="img")
