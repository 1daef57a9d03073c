"""Arguments of the stages, checked when a stage is made."""

from __future__ import annotations

import numpy as np
import pytest

import loaderx as lx
from loaderx.image.arguments import (
    area_of,
    channels_of,
    names_of,
    numbers_of,
    share_of,
    size_of,
    span_of,
)


def test_what_is_right():
    assert size_of(3) == (3, 3)
    assert size_of((np.int64(3), 4)) == size_of([3, 4]) == (3, 4)
    assert size_of(0, "padding", least=0) == (0, 0)
    assert names_of("masks", "a") == names_of("masks", ["a"]) == ("a",)
    assert names_of("masks", ()) == ()
    assert numbers_of("value", 3).shape == ()
    assert numbers_of("value", (1, 2, 3)).tolist() == [1, 2, 3]
    assert channels_of(3) == 3
    assert span_of("hue", (-1, 1), "", -1) == (-1, 1)
    assert span_of("ratio", [1, 2]) == (1, 2)
    assert area_of((0.5, 1)) == (0.5, 1)
    assert share_of("probability", 1) == 1.0
    assert share_of("probability", np.float32(0.5)) == 0.5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: size_of(()), r"`size` must be a number or \(height, width\), got \(\)\."),
        (lambda: size_of(-1, "padding", 0), r"`padding` must be at least 0, got -1\."),
        (lambda: size_of(True), r"`size` must be an integer, got True \(bool\)\."),
        (lambda: names_of("masks", {"a": 1}), r"`masks` must be the name of a leaf, or several"),
        (lambda: numbers_of("value", [[1]]), r"a number, or one for each channel, got \[\[1\]\]\."),
        (lambda: numbers_of("value", []), r"a number, or one for each channel, got \[\]\."),
        (lambda: numbers_of("value", np.inf), r"a number, or one for each channel, got inf\."),
        (lambda: channels_of(True), r"`channels` must be 1, 3 or 4, got True\."),
        (lambda: span_of("hue", (1, 2, 3)), r"two numbers above 0, the smallest first, got \(1"),
        (lambda: span_of("ratio", (0, 1)), r"two numbers above 0, the smallest first, got \(0, 1"),
        (lambda: span_of("ratio", (1, np.nan)), r"two numbers above 0, the smallest first"),
        (
            lambda: area_of((0.5, 1.5)),
            r"at most 1, shares of the area, the smallest",
        ),
        (lambda: share_of("probability", True), r"from 0 to 1, got True\."),
        (lambda: share_of("probability", np.nan), r"from 0 to 1, got nan\."),
    ],
)
def test_what_is_wrong(call, message):
    with pytest.raises((lx.ArgumentError, lx.ArgumentTypeError), match=message):
        call()
