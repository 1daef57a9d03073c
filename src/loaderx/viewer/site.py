"""The pages by their addresses: what is asked for is found, and made into HTML."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http import HTTPStatus
from itertools import islice

from loaderx import DataLoader
from loaderx.chain.describe import count_text
from loaderx.chain.html import boxes
from loaderx.display.html import tag
from loaderx.display.values import plain_text
from loaderx.errors import LoaderxError, PositionError
from loaderx.survey.look import leaves_of
from loaderx.tree import Tree
from loaderx.viewer import pages
from loaderx.viewer.looking import (
    Split,
    Steps,
    batch_columns,
    batch_rows,
    named_leaves,
    steps_of,
    told,
)

_AT_ONCE = 24  # records of a page
_MOST_ROWS = 64  # of a batch
_MOST_DIGITS = 18  # of a number: positions are below 2**62

Query = Mapping[str, str]


class NoPageError(Exception):
    """There is no such page, or a number of its address is none."""

    def __init__(self, text: str, status: HTTPStatus = HTTPStatus.NOT_FOUND) -> None:
        super().__init__(text)
        self.status = status


class Site:
    """All pages of one viewer, for one thread at a time: sources need not be safe for several.

    Args:
        title: what is shown.
        splits: records by name.
        steps: of a loader, if one is shown.
        first: the step or record to begin with.
        in_words: puts messages about files in the words of the user.
    """

    def __init__(
        self,
        title: str,
        splits: Mapping[str, Split],
        steps: Steps | None = None,
        first: int = 0,
        in_words: Callable[[str], str] = str,
    ) -> None:
        self.title, self.splits, self.steps = plain_text(title), splits, steps
        self.first, self.in_words = first, in_words
        self._lock = threading.Lock()
        self._columns_of: dict[str, str] = {}  # by split: a sample takes a while to read
        records = {"records": "Source records" if steps else "Records", "columns": "Columns"}
        self._tabs = {**({"./": "Steps"} if steps else {}), **(records if splits else {})}
        self._pages: dict[str, Callable[[Query], Iterator[str]]] = {}
        if splits:
            self._pages |= {"records": self._records, "record": partial(self._records, whole=True)}
            self._pages |= {"columns": self._columns, "": self._records}
        if steps:
            self._pages |= {"": self._steps, "stages": self._stages}

    def answer(self, name: str, query: Query) -> str:
        """A page."""
        made = self._pages.get(name)
        if made is None:
            raise NoPageError("there is no such page.")
        body: list[str] = []
        with self._lock:
            try:
                body.extend(made(query))
            except NoPageError:
                raise
            except Exception as error:  # what was made before it stays
                body.append(pages.problem(self.in_words(told(error))))
        shown = self._tabs.get(name or ("./" if self.steps else "records"))
        header = tag("h1", self.title), pages.tabs("tabs", shown, self._tabs)
        title = f"{self.title} \u00b7 loaderx"
        return pages.page(title, tag("header", "", *header), tag("main", "", *body))

    # Files and sources ------------------------------------------------------------------------

    def _split(self, query: Query) -> tuple[str, Split]:
        name = query.get("of", next(iter(self.splits)))
        if name not in self.splits:
            raise NoPageError("there are no such records.")
        return name, self.splits[name]

    def _splits(self, place: str, shown: str) -> str:
        return pages.tabs(
            "splits", shown, {pages.address(place, of=one): one for one in self.splits}
        )

    def _records(self, query: Query, *, whole: bool = False) -> Iterator[str]:
        """Some records, or one of them whole."""
        name, split = self._split(query)
        at = number(query, "record", 0 if self.steps else self.first)
        by, place = (1, "record") if whole else (_AT_ONCE, "records")

        def href(record: int) -> str:
            return pages.address("record", of=name, record=record)

        yield self._splits("records", name)
        found = split.records(at, by)
        yield pages.walk("record", at, found.total, by, place, ends=True, of=name)
        problems = {n: self.in_words(why) for n, why in found.problems.items()}
        classes = found.parts[0].source.classes
        if whole and found.records:
            shown = pages.change(None, found.records[at], classes)
        else:
            shown = pages.listing(found.records, problems, classes, href)
        yield tag("div", "", shown or none_of("record", at, found.total), data_live="shown")

    def _columns(self, query: Query) -> Iterator[str]:
        name, split = self._split(query)
        yield self._splits("columns", name)
        if name not in self._columns_of:
            self._columns_of[name] = "".join(self._facts(split))
        yield self._columns_of[name]

    def _facts(self, split: Split) -> Iterator[str]:
        found, columns = split.columns()
        count = len(found.records) + len(found.problems)
        of = "all" if count == found.total else f"a sample of {count:,} of"
        yield pages.note(f"from {of} {found.total:,} records")
        for at, why in [*found.problems.items()][:1]:
            told = f"such as record {at:,}: {self.in_words(why)}"
            yield pages.problem(f"{len(found.problems)} cannot be read, {told}")
        yield pages.columns(columns)

    # Steps ------------------------------------------------------------------------------------

    def _steps(self, query: Query) -> Iterator[str]:
        steps, step = self.steps, number(query, "step", self.first)
        assert steps is not None
        node = steps.node
        yield tag("div", "", boxes(node), pages.note(count_text(node)), style="about")
        yield pages.walk("step", step, node.length, 1 if node.batched else _AT_ONCE, ends=False)
        shown = self._batch(steps, step) if node.batched else self._elements(steps, step)
        yield tag("div", "", *shown, data_live="shown")

    def _elements(self, steps: Steps, step: int) -> Iterator[str]:
        found, problems = {}, {}
        for at in range(step, step + _AT_ONCE):
            try:
                found[at] = named_leaves(steps.element(at))
            except PositionError as error:  # there are no more
                problems[at] = str(error)
                break
            except Exception as error:  # of a function or a source: the others are shown
                problems[at] = told(error)
        yield pages.listing(
            found, problems, steps.classes, lambda n: pages.address("stages", step=n)
        )

    def _batch(self, steps: Steps, step: int) -> Iterator[str]:
        main, side, places = [], [], {}
        try:
            rows = batch_rows(named_leaves(steps.element(step)))
        except Exception as error:  # of a function or a source
            rows = {}
            main.append(pages.problem(told(error)))
        try:
            found = steps.records(step)
            places = {int(row): place for place, row in reversed([*enumerate(found.row)])}
            side += [tag("h2", "Made of"), pages.origins(found, step)]
        except LoaderxError as error:
            side += [pages.note(str(error))] if rows else []
        if rows:
            first = dict(islice(rows.items(), _MOST_ROWS))

            def href(row: int) -> str:
                return pages.address("stages", step=step, record=places.get(row, 0))

            main.append(pages.listing(first, {}, steps.classes, href))
            main += [pages.note(f"and {len(rows) - len(first):,} more rows")] * (
                len(first) < len(rows)
            )
            main += [tag("h2", "In this batch"), pages.columns(batch_columns(rows, steps.classes))]
        yield tag("div", "", tag("div", "", *main), tag("aside", "", *side), style="batch")

    def _stages(self, query: Query) -> Iterator[str]:
        steps, step, place = self.steps, number(query, "step"), number(query, "record", 0)
        assert steps is not None
        found = steps.records(step)[place : place + 1]
        yield tag("h2", f"What the stages do to record {place:,} of step {step:,}")
        yield pages.note("", tag("a", "back to the step", href=pages.address("./", step=step)))
        yield pages.origins(found, step, place)
        try:
            passed = steps.stages(step, place)
        except LoaderxError as error:
            yield pages.note(str(error))
            for value in found.read():
                yield pages.stage("source", pages.change(None, dict(leaves_of(value)), {}))
            return
        before = None
        for each in passed:
            if each.read is None:
                yield pages.stage(each.stage, pages.note(f"moves it to place {each.position:,}"))
                continue
            try:
                after = named_leaves(each.read())
                yield pages.stage(each.stage, pages.change(before, after, steps.classes))
                before = after
            except Exception as error:  # of the function of this stage
                yield pages.stage(each.stage, pages.problem(told(error)))


def site_of(title: str, loader: DataLoader[Tree], first: int = 0) -> Site:
    """The pages of a loader and its sources."""
    steps = steps_of(loader)
    return Site(title, dict(steps.sources()), steps, first)


def none_of(kind: str, number: int, count: int) -> str:
    """A number is too large."""
    return pages.problem(f"there is no {kind} {number:,}: there are {count:,}.")


def number(query: Query, name: str, default: int | None = None) -> int:
    """A number of an address."""
    text = query.get(name, "" if default is None else str(default))
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
        most = f"{10**_MOST_DIGITS - 1:,}"
        raise NoPageError(f"{name} must be a number from 0 to {most}.", HTTPStatus.BAD_REQUEST)
    return int(text)
