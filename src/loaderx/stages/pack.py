"""pack: records of variable length laid end to end into rows of a fixed one.

How records are given rows, and written into them, is in `pack_rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from loaderx.chain.encoding import stage_text
from loaderx.chain.functions import name_of
from loaderx.chain.numbers import check_window
from loaderx.chain.stream_stage import OptionsStage, WindowOptions
from loaderx.errors import (
    ArgumentError,
    ArgumentTypeError,
    StackError,
    check_bool,
    check_choice,
    check_int,
    check_name,
)
from loaderx.reading.context import ReadContext
from loaderx.reading.rows import Rows, joined
from loaderx.reading.stacking import Value
from loaderx.reading.unit_stage import UnitStage
from loaderx.rng import PIECE, fold

if TYPE_CHECKING:
    from loaderx.chain.stream_build import StreamBuild

STRATEGIES = ("best_fit", "first_fit", "concat")
OVERFLOWS = ("error", "truncate", "split", "drop")

Balance: TypeAlias = Literal["squares"] | Callable[..., object] | None
"""The cost of a segment: the square of its length, or a function of the lengths of segments."""


class Packing(WindowOptions):
    """The arguments of `Dataset.pack`."""

    lengths: Mapping[str, int | str]
    strategy: str = "best_fit"
    window: int = 2000
    overflow: str = "error"
    pad_value: Value = 0
    max_segments: int | None = None
    segment_ids: str | None = "{}_segment_ids"
    positions: str | None = "{}_positions"
    bos: Value = None
    whole_documents: bool = False
    eos: Value = None
    continue_positions: bool = False
    balance: Balance = None
    balance_rows: int = 8

    @property
    def rows(self) -> dict[str, int]:
        """The leaves that have a row length of their own."""
        return {path: n for path, n in self.lengths.items() if not isinstance(n, str)}

    def leader(self, path: str) -> str:
        """The leaf that this one is packed alike with: itself, if it has a length of its own."""
        other = self.lengths[path]
        return other if isinstance(other, str) else path

    def padding(self, path: str) -> Value:
        return (
            self.pad_value.get(path, 0) if isinstance(self.pad_value, Mapping) else self.pad_value
        )

    def first_token(self, path: str) -> Value:
        if isinstance(self.bos, Mapping):
            return self.bos.get(path, self.padding(path))
        return self.bos

    def last_token(self, path: str) -> Value:
        """The value after each document; None if this leaf has none."""
        return self.eos.get(path) if isinstance(self.eos, Mapping) else self.eos

    @property
    def heads(self) -> int:
        """The number of places at the head of each row that are not for records."""
        return 0 if self.bos is None else 1


def check_packing(
    lengths: object,
    strategy: str,
    window: int,
    overflow: str,
    pad_value: Value,
    max_segments: int | None,
    segment_ids: str | None,
    positions: str | None,
    bos: Value,
    whole_documents: bool,
    eos: Value = None,
    continue_positions: bool = False,
    balance: Balance = None,
    balance_rows: int = 8,
) -> Packing:
    checked = _check_lengths(lengths, least=1 if bos is None else 2)
    check_choice("strategy", strategy, STRATEGIES)
    check_choice("overflow", overflow, OVERFLOWS)
    if max_segments is not None:
        check_int("max_segments", max_segments, least=1)
    for name, template in (("segment_ids", segment_ids), ("positions", positions)):
        if template is not None and (not isinstance(template, str) or "{}" not in template):
            raise ArgumentError(
                f"`{name}` must be a name with a {{}} for the leaf, such as '{{}}_{name}', or "
                f"None; got {template!r}."
            )
    if segment_ids is not None and segment_ids == positions:
        raise ArgumentError(f"`segment_ids` and `positions` have the same name {positions!r}.")
    if balance is not None and not callable(balance):
        check_choice("balance", balance, ("squares",))
    packing = Packing(
        checked,
        strategy,
        check_window(window),
        overflow,
        pad_value,
        max_segments,
        segment_ids,
        positions,
        bos,
        bool(whole_documents),
        eos,
        check_bool("continue_positions", continue_positions),
        balance,
        check_int("balance_rows", balance_rows, least=1),
    )
    _check_strategy(packing)
    _check_marks(packing)
    return packing


def _check_lengths(lengths: object, *, least: int) -> dict[str, int | str]:
    if not isinstance(lengths, Mapping) or not lengths:
        raise ArgumentTypeError(
            f"`lengths` must be a dict such as {{'tokens': 2048}}, got {lengths!r}."
        )
    rows: dict[str, int | str] = {}
    for path, n in lengths.items():
        check_name("lengths", path)
        rows[path] = n if isinstance(n, str) else check_int(f"lengths[{path!r}]", n, least=least)
    for path, other in rows.items():
        if isinstance(other, str) and not isinstance(rows.get(other), int):
            raise ArgumentError(
                f"`lengths[{path!r}]` is {other!r}: it must be a length, or a leaf that has one in "
                "`lengths`."
            )
    return rows


def _check_strategy(packing: Packing) -> None:
    strategy, whole, rows = packing.strategy, packing.whole_documents, packing.rows
    if whole and strategy != "concat":
        raise ArgumentError(
            f"`whole_documents` goes with strategy='concat'; {strategy!r} never cuts a record."
        )
    if strategy == "concat" and not whole:
        if len(set(rows.values())) > 1:
            raise ArgumentError(
                "strategy='concat' cuts all leaves at the same places: their `lengths` must be "
                f"equal, got {rows}. Use whole_documents=True, or another strategy."
            )
        if packing.overflow != "error":
            raise ArgumentError(
                "strategy='concat' cuts records wherever a row is full, so `overflow` has no "
                "meaning. Leave it out, or use whole_documents=True."
            )


def _check_marks(packing: Packing) -> None:
    """Refuses a token for one leaf as the value of another that is packed alike."""
    eos = packing.eos
    for name in eos if isinstance(eos, Mapping) else ():
        if name not in packing.lengths:
            raise ArgumentError(f"`eos` names a leaf {name!r}, and `lengths` does not.")
    for path in packing.lengths:
        other = packing.leader(path)
        if other == path:
            continue
        for name, value in (("bos", packing.bos), ("eos", eos)):
            if value is not None and not isinstance(value, Mapping):
                raise ArgumentError(
                    f"`{name}` is one value, and {path!r} is packed alike with {other!r}. Give a "
                    f"dict with a value for each: {name}={{{other!r}: {value!r}, {path!r}: ...}}."
                )
        if isinstance(eos, Mapping) and (path in eos) != (other in eos):
            raise ArgumentError(
                f"{path!r} is packed alike with {other!r}: `eos` needs a value for both, or for "
                f"neither; got {dict(eos)}."
            )


class PackedRecords(OptionsStage):
    """The records of each window, laid into rows."""

    options: Packing

    @property
    def stage(self) -> str:
        options = self.options
        return f"pack({dict(options.lengths)}, {options.strategy!r}, window={options.window})"

    def fingerprint(self, seed: int) -> str:
        options = self.options
        if callable(options.balance):
            options = options.replace(balance=name_of(options.balance))
        return stage_text("pack", {}, options)

    @property
    def user_objects(self) -> tuple[tuple[str, object], ...]:
        balance = self.options.balance
        return ((f"balance of {self.stage}", balance),) if callable(balance) else ()

    def unit_stage(self, build: StreamBuild) -> UnitStage:
        meter = build.new_meter("pack", self.stage, sum(self.options.rows.values()))
        return Pack(self.stage, self.options, meter=meter, traces=build.traces)


class Pack(UnitStage):
    """Lays the records of each window of a unit into rows."""

    wants = False

    def __init__(self, stage: str, options: Packing, *, meter: int, traces: bool) -> None:
        super().__init__(stage)
        self.options, self.meter, self.traces = options, meter, traces

    def read(self, rows: Rows, context: ReadContext) -> Rows:
        found = []
        members: list[list[int]] = []  # the records of each row
        for _, start, stop in rows.windows(self.options.window):
            packed = self._window(rows, start, stop, context, members)
            if packed is not None:
                found.append(packed)
        made = joined(found) if found else rows.derived([], np.empty(0, np.int64))
        return rows.name_after(made, members) if self.traces else made

    def _window(
        self, rows: Rows, start: int, stop: int, context: ReadContext, members: list[list[int]]
    ) -> Rows | None:
        from loaderx.stages.pack_rows import pack  # most chains do not pack

        window = rows.cut(start, stop)
        try:
            found = pack(window.records(), self.options, window.name, context.lend)
        except StackError as error:
            raise self.failure(error) from error
        if found is None:
            return None
        context.count(self.meter, found.capacity, found.tokens)
        assert window.places is not None
        if self.traces:
            cuts = np.searchsorted(found.rows, np.arange(1, found.count))
            members += [each.tolist() for each in np.split(found.records + start, cuts)]
        return window.derived(
            Rows.of_columns(found.tree, found.count),
            found.first,
            keys=None
            if window.keys is None
            else fold(window.keys[found.first], found.start, PIECE),
            places=np.repeat(window.places[:1], found.count),
        )
