"""Datasets of very many parts: the same records, and a batch that costs what its rows cost."""

from __future__ import annotations

import numpy as np
import pytest

from loaderx import Dataset
from loaderx.stages.join import ReadArrays
from loaderx.testing.costing import cost_of
from oracle import assert_same

ROWS = 7


def arrays(count, rows=ROWS):
    x = np.arange(count * rows * 6, dtype=np.float32).reshape(count, rows, 2, 3)
    return [{"x": x[i], "y": np.arange(rows) + i * rows} for i in range(count)]


def in_memory(count, _):
    return [Dataset.from_arrays(**tree) for tree in arrays(count)]


def tuples(count, _):
    return [Dataset.from_arrays((tree["x"], tree["y"])) for tree in arrays(count)]


def strided(count, _):
    """Some lie otherwise than others."""
    return [
        Dataset.from_arrays(x=np.asfortranarray(tree["x"]) if i % 2 else tree["x"], y=tree["y"])
        for i, tree in enumerate(arrays(count))
    ]


def texts(count, _):
    return [
        Dataset.from_arrays(t=np.array([f"{i}, {j}" for j in range(ROWS)], object))
        for i in range(count)
    ]


def moved(count, _):
    parts = [Dataset.from_arrays(**tree) for tree in arrays(count)]
    choices = [lambda p: p, lambda p: p.shuffle(seed=3), lambda p: p[::-1], lambda p: p.repeat(2)]
    return [choices[i % 4](part) for i, part in enumerate(parts)]


def files(count, folder):
    found = []
    for i, tree in enumerate(arrays(count)):
        np.savez(folder / f"{i}.npz", **tree)
        found.append(Dataset.open(folder / f"{i}.npz"))
    return found


MAKERS = [in_memory, tuples, strided, texts, moved, files]


def noisy(record, rng):
    return record, rng.random()


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("join", ["concatenate", "mix", "repeated mix"])
def test_rows_read_one_by_one_are_those_of_gathers(make, join, tmp_path, monkeypatch):
    parts = make(40, tmp_path)

    def read():
        if join == "concatenate":
            joined = Dataset.concatenate(parts)
        else:
            stop = "repeat" if "repeated" in join else "all_exhausted"
            joined = Dataset.mix(parts, [1 + i % 3 for i in range(40)], stop=stop).take(280)
        shuffled = joined.shuffle(seed=1)
        return [
            *shuffled.batch(32),
            *shuffled.batch(32).random_map(noisy, seed=2),
            *shuffled.random_map(noisy, seed=2).take(20),
        ]

    found = read()
    monkeypatch.setattr(ReadArrays, "of", lambda children: None)
    assert_same(found, read())


def test_parts_that_look_different_are_still_refused():
    parts = [Dataset.from_arrays(x=np.zeros((5, 2))) for _ in range(30)]
    other = Dataset.from_source([{"x": np.zeros(3)}] * 5)
    joined = Dataset.concatenate([*parts, other]).shuffle(seed=0).batch(64)
    with pytest.raises(Exception, match=r'leaf "x"'):
        list(joined)


@pytest.mark.parametrize("join", [Dataset.concatenate, lambda parts: Dataset.mix(parts)])
def test_a_batch_costs_the_same_in_many_parts(join, tmp_path):
    def cost(count):
        batches = iter(join(in_memory(count, tmp_path)).shuffle(seed=0).repeat().batch(64))
        next(batches)
        next(batches)
        return cost_of(lambda: next(batches))

    few, many = cost(64), cost(2_000)
    assert many.calls <= 2 * few.calls
    assert many.nbytes <= 2 * few.nbytes + 64 * 1024


def test_a_batch_of_mapped_parts_costs_the_same_in_many(tmp_path):
    """Parts that are read by functions, too, are looked up for the rows of a batch alone."""

    def cost(count):
        parts = [part.map(dict) for part in in_memory(count, tmp_path)]
        batches = iter(Dataset.concatenate(parts).shuffle(seed=0).repeat().batch(16))
        next(batches)
        return cost_of(lambda: next(batches))

    assert cost(1_000).calls <= 2 * cost(32).calls


def test_elements_by_number_do_not_compile_the_chain_each_time(tmp_path):
    def cost(count):  # what is made once is made by the first look
        dataset = Dataset.concatenate(in_memory(count, tmp_path)).shuffle(seed=0)
        assert_same([dataset[3]], dataset[3:4])
        return cost_of(lambda: dataset[5])

    assert cost(1_000).calls <= 2 * cost(10).calls
