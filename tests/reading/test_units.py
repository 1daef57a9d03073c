"""Units: those that a stream is read in are those that its state counts, and those of the rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stream_oracle
from inside import node_of
from loaderx import DataLoader, Dataset
from loaderx.chain import stream_build
from loaderx.engines import Inline
from loaderx.loader.stream_iterator import StreamSetup
from loaderx.memory import Pool
from loaderx.reading.context import ReadContext
from loaderx.reading.lookahead import MakeHere
from stream_chains import batched_streams, record_streams


def small(x):
    return x < 50


def in_use(setup: StreamSetup) -> tuple[list[int], list[int]]:
    """The units of the plan, and the windows of the readers of one lane."""
    windows: list[int] = []

    class Spied(stream_build.WindowReader):
        def __init__(self, *values: Any) -> None:
            super().__init__(*values)
            if self.window is not None:
                windows.append(self.window)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_build, "WindowReader", Spied)
        setup.plan.read(MakeHere(setup.plan.units, lambda: ReadContext(Pool().lend)))
    return [leaf.rows for leaf in setup.plan.units], sorted(windows)[:: len(setup.plan.own)]


def check(dataset: Dataset[Any]) -> None:
    setup = StreamSetup(node_of(dataset), (0, 1), Inline())
    expected = stream_oracle.units(setup.plan.node)
    units, windows = in_use(setup)
    assert units == [size for kind, size, _ in expected if kind == "unit"]
    assert windows == sorted(size for kind, size, _ in expected if kind == "window")
    said = iter(DataLoader(dataset, engine="inline")).get_state()["chain"][-1]
    deal = ", deal 2" if setup.plan.lanes > 1 else ""
    assert said == f"units {','.join(text for _, _, text in expected) or 'none'}{deal}"


@settings(max_examples=300)
@given(st.one_of(batched_streams(), record_streams()))
def test_generated_streams(dataset):
    check(dataset)


WIDE = Dataset.from_arrays(x=np.broadcast_to(np.float32(1), (100_000, 1000)))
LONG = Dataset.range(100_000)
RAGGED = Dataset.from_source([{"t": [i] * (i % 5 + 1)} for i in range(5000)])


@pytest.mark.parametrize(
    ("dataset", "units"),
    [
        (LONG.filter(small).batch(4), "1024"),
        (LONG.filter(small, batched=True).batch(4), "8192"),
        (LONG.filter(small, batched=True), "8192"),
        (LONG.filter(small, batched=True).take(5), "8192"),
        (LONG.filter(small, batched=True).repeat(2).take(5), "8192"),
        (LONG.filter(small, batched=True).batch(4).take(5), "8192"),
        (LONG.filter(small, batched=True).take(5).batch(4), "1024"),
        (LONG.filter(small, batched=True).take(5).repeat(2), "1024"),
        (LONG.filter(small, batched=True).map(abs).batch(4), "1024"),
        (LONG.filter(small, batched=True).seed(1).repeat().batch(8, lanes=8), "2048/56, deal 2"),
        (LONG.filter(small, batched=True).shuffle(window=10).batch(4), "10"),
        (LONG.shuffle(window=10).filter(small, batched=True).batch(4), "8192"),
        (LONG.repeat().filter(small).batch(4), "1024"),
        (Dataset.range(100).filter(small).batch(4), "16"),
        (Dataset.range(3).filter(small).batch(4), "1"),
        (WIDE.filter(small).batch(4), "1024"),
        (WIDE.batch(5).unbatch().filter(small).batch(4), "1024"),
        (WIDE.filter(small, batched=True).batch(4), "2048"),
        (RAGGED.filter(len).batch(4), "256"),
        (LONG.flat_map(range).batch(4), "64"),
        (LONG.filter(small).flat_map(range).map(abs).batch(4), "64"),
        (RAGGED.flat_map(list).batch(4), "64"),
        (LONG.flat_map(range, window=1).filter(small).batch(4), "1"),
        (LONG.flat_map(range, window=1).shuffle(window=8).batch(4), "8"),
        (Dataset.mix([LONG.filter(small), LONG.flat_map(range)]).batch(4), "1024,64"),
        (LONG.filter(small).take(9).flat_map(range).batch(4), "1024"),
        (LONG.filter(small).take(9).flat_map(range, window=2).batch(4), "2,1024"),
        (RAGGED.pack({"t": 8}).batch(4), "2000"),
        (RAGGED.shuffle(window=50).pack({"t": 8}, window=100).batch(4), "100"),
        (RAGGED.filter(len).shuffle(window=50).pack({"t": 8}, window=100).batch(4), "100"),
        (RAGGED.bucket([2, 8], 4, window=64).repeat(2).take(3), "64"),
        (RAGGED.filter(len).take(9).bucket([2, 8], 4, window=64), "64,256"),
        (Dataset.from_iterable(range).shuffle(window=9).batch(4), "9"),
        (Dataset.from_iterable(range).filter(small).batch(4), "none"),
        (
            Dataset.mix([LONG.filter(small).shuffle(window=8), LONG, LONG.filter(small)])
            .shuffle(window=6).filter(small).shuffle(window=3).batch(4),
            "6,8,1024,1024",
        ),
        (Dataset.mix([LONG, LONG.filter(small, batched=True)]).map(abs).batch(4), "1024,1024"),
    ],
)  # fmt: skip
def test_the_rules(dataset, units):
    check(dataset)
    state = iter(DataLoader(dataset, engine="inline")).get_state()
    assert state["chain"][-1] == f"units {units}"


def test_a_last_take_is_no_part_of_the_state():
    """The units of a stream are the same with and without it."""
    stream = LONG.filter(small, batched=True)
    iterator = iter(DataLoader(stream.take(7), engine="inline"))
    assert [int(next(iterator)) for _ in range(3)] == [0, 1, 2]
    longer = iter(DataLoader(stream.take(9), engine="inline"))
    longer.set_state(iterator.get_state())
    whole = iter(DataLoader(stream, engine="inline"))
    whole.set_state(iterator.get_state())
    assert next(longer) == next(whole) == 3
