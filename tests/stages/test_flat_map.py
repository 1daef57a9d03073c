"""`flat_map`: each record that it makes is one of its own."""

from __future__ import annotations

from loaderx import Dataset


def test_children_draw_their_own():
    twins = Dataset.range(20).flat_map(lambda x: [x, x]).random_map(lambda x, rng: rng.random())
    draws = [float(x) for x in twins]
    assert len(set(draws)) == 40
