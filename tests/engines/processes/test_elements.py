"""Elements that come back from workers: every kind, and as they were made."""

from __future__ import annotations

import ast
import collections
import dataclasses

import numpy as np
import pytest

from chains import arrays
from loaderx import DataLoader, Dataset, LoaderxError, RecordError
from loaderx.engines import Processes
from oracle import assert_same


def every_kind(x):
    i = int(x)
    made = {
        "grown": np.full(i * 37 % 500, i),
        "strided": np.arange(24).reshape(4, 6).T + i,
        "reversed": np.arange(6)[::-1] + i,
        "empty": np.empty((0, 3)),
        "scalar": np.float64(i),
        "zero_d": np.array(i),
        "text": "é" * i,
        "bytes": b"x" * i,
        "number": i,
        "nothing": None,
        "date": np.datetime64("2020-01-01") + np.arange(3),
        "void": np.array([(i, 0.5)], dtype=[("a", "i4"), ("b", "f8")]),
        "objects": np.array([i, "x", None], dtype=object),
        "nested": (i, [np.arange(i), {"k": np.ones(2)}]),
        "broadcast": np.broadcast_to(np.int64(i), (3, 3)),
    }
    return made if i % 3 else {k: made[k] for k in ("grown", "text", "nested")}


def test_records_of_every_kind_come_back_as_they_are():
    dataset = Dataset.range(60).map(every_kind)
    with DataLoader(dataset, engine=Processes(2)) as loader:
        assert_same(loader, dataset)


def test_a_batch_that_is_too_large_says_so():
    def huge(batch):
        return np.broadcast_to(np.zeros(1), (3 << 30,))

    with (
        pytest.raises(LoaderxError, match="worker processes can make batches of up to 17 GB"),
        DataLoader(arrays(4).batch(2).map(huge), engine=Processes(1)) as loader,
    ):
        next(iter(loader))


@dataclasses.dataclass
class Counted:
    x: object
    made: int = dataclasses.field(default=0, init=False)

    def __post_init__(self):
        self.made += 1


@dataclasses.dataclass
class Scaled:
    x: object
    by: dataclasses.InitVar[int] = 1


class Own(collections.namedtuple("Own", "x y")):
    def __new__(cls, x):
        return super().__new__(cls, x, x)


def test_odd_containers_come_back_as_they_were():
    def odd(batch):
        x = batch["x"]
        return (
            Counted(x),
            Scaled(x),
            collections.OrderedDict(a=x, b=x),
            collections.defaultdict(list, a=x),
        )

    dataset = arrays(12).batch(4).map(odd)
    with DataLoader(dataset, engine=Processes(1)) as loader:
        for got, expected in zip(loader, dataset, strict=True):
            assert [type(one) for one in got] == [type(one) for one in expected]
            assert got[0].made == 1
    parsed = Dataset.range(3).map(lambda i: {"code": ast.parse(f"x = {i}")})  # it has `_fields`
    with DataLoader(parsed, engine=Processes(1)) as loader:
        assert [ast.unparse(record["code"]) for record in loader] == ["x = 0", "x = 1", "x = 2"]
    named = arrays(12).batch(4).map(lambda b: Own(b["x"]))
    with DataLoader(named, engine=Processes(1)) as loader:
        assert [type(batch) for batch in loader] == [Own] * 3


def test_leaves_that_overlap_become_rows_of_their_own_and_aliases_stay():
    def overlapping(batch):
        x = batch["x"]
        return {
            "a": x,
            "b": x[::2],
            "same": np.broadcast_to(x, (3, 4)),
            "windows": np.lib.stride_tricks.sliding_window_view(x, 2),
        }

    dataset = arrays(80).batch(4).map(overlapping)
    with DataLoader(dataset, engine=Processes(1, prefetch=0)) as loader:
        held = []
        for step, batch in enumerate(loader):
            assert_same([{**batch}], [dataset[step]])
            batch["same"][0] += 1000
            assert batch["same"][1].tolist() == batch["a"].tolist()
            batch["a"] += 100
            assert batch["b"].tolist() == batch["a"][::2].tolist()  # also when it was copied out
            held.append(batch)


def test_an_element_that_cannot_travel_is_an_error_of_its_step():
    def odd(record):
        return (
            {"x": record["x"], "generator": (i for i in range(3))} if record["x"] == 3 else record
        )

    with DataLoader(arrays(8).map(odd), engine=Processes(1)) as loader:
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        with pytest.raises(RecordError, match="cannot be sent from a worker.*generator"):
            next(iterator)


@dataclasses.dataclass
class Point:
    x: np.ndarray
    y: np.ndarray


def test_dataclasses_of_a_module_come_back_as_themselves():
    dataset = arrays(20).map(lambda r: Point(r["x"], r["y"])).batch(4)
    with DataLoader(dataset, engine=Processes(1)) as loader:
        batches = list(loader)
    assert {type(batch) for batch in batches} == {Point}
    assert_same([b.x for b in batches], [b.x for b in dataset])
