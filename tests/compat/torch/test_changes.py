"""Changes of a dataset between two epochs."""

from __future__ import annotations

import pytest

from loaderx.compat.torch.changes import Snapshot


class Thing:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


def made():
    return Thing(size=32, names=["a", "b"], inner=Thing(scale=2.0, table={"x": 1}), empty=None)


CHANGES = {
    "a number": lambda thing: setattr(thing, "size", 33),
    "another object": lambda thing: setattr(thing, "inner", Thing(scale=2.0, table={"x": 1})),
    "a number inside": lambda thing: setattr(thing.inner, "scale", 3.0),
    "a new attribute": lambda thing: setattr(thing, "other", 1),
    "one less": lambda thing: delattr(thing, "empty"),
    "a longer list": lambda thing: thing.names.append("c"),
    "a longer dict": lambda thing: thing.inner.table.update(y=2),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(name):
    thing = made()
    before = Snapshot(thing)
    assert before.holds()
    CHANGES[name](thing)
    assert not before.holds()


def test_the_same_value_is_no_change():
    thing = made()
    before = Snapshot(thing)
    thing.size = int("32")
    thing.inner.scale = float("2.0")
    assert before.holds()
