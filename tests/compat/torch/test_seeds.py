"""Seeds of loaders in a program without torch; `tests/owners/test_torch.py` has one with it."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from loaderx import ArgumentTypeError, StateError
from loaderx.compat import torch as data
from oracle import assert_same


class Noisy:
    def __len__(self):
        return 50

    def __getitem__(self, index):
        return index, np.random.rand()  # noqa: NPY002


def all_differ(one, other):
    batches = zip(one, other, strict=True)
    return all(not (a == b).any() for left, right in batches for _, a in [left] for _, b in [right])


@pytest.mark.parametrize("shuffle", [False, True])
def test_two_loaders_do_not_draw_alike(shuffle):
    dataset = Noisy()
    one, other, small = (
        data.DataLoader(dataset, 8, shuffle, **seed) for seed in ({}, {}, {"generator": 1})
    )
    first = list(one)
    assert all_differ(first, other)
    assert all_differ(first, small)
    assert all_differ(first, one)  # the next epoch
    if shuffle:
        assert first[0][0].tolist() != next(iter(other))[0].tolist()


@pytest.mark.parametrize("make", [lambda: 3, lambda: np.random.default_rng(3)], ids=["n", "rng"])
def test_seeds_given_alike(make):
    one, other = (data.DataLoader(Noisy(), 8, True, generator=make()) for _ in range(2))
    assert_same(one, other)


def test_loaders_that_share_a_generator():
    """They draw one after the other; a state brings its seed along."""

    def made():
        rng = np.random.default_rng(3)
        return [data.DataLoader(Noisy(), 8, True, generator=rng) for _ in range(2)]

    pairs = [made(), made()]
    firsts = [[list(loader) for loader in pair] for pair in pairs]
    assert_same(*firsts)
    assert all_differ(*firsts[0])
    other, _ = made()
    other.load_state_dict(pairs[0][1].state_dict())
    assert_same(other, pairs[0][1])


def test_the_same_in_every_run():
    script = (
        "from loaderx.compat.torch import DataLoader\n"
        "one, other = (DataLoader(range(30), 30, True) for _ in range(2))\n"
        "print([next(iter(loader)).tolist() for loader in (other, one)])"
    )
    run = [sys.executable, "-c", script]
    one, other = (subprocess.run(run, capture_output=True, text=True, check=True) for _ in range(2))
    assert one.stdout == other.stdout
    second, first = json.loads(one.stdout)
    assert first != second


@pytest.mark.parametrize("steps", [0, 3, 7])
def test_a_state_has_the_seed(steps):
    loader = data.DataLoader(Noisy(), 8, True)
    batches = iter(loader) if steps else None
    for _ in range(steps):
        next(batches)
    state = loader.state_dict()
    rest = [*(batches or loader), *loader]
    other = data.DataLoader(Noisy(), 8, True)
    next(iter(other))  # it has drawn a seed of its own
    other.load_state_dict(json.loads(json.dumps(state)))
    assert_same([*other, *other], rest)


def test_a_state_of_another_seed():
    loader = data.DataLoader(Noisy(), 8, True, generator=1)
    next(iter(loader))
    given = data.DataLoader(Noisy(), 8, True, generator=2)
    given.load_state_dict(loader.state_dict())
    with pytest.raises(StateError, match=r"seed was 1 and is 2 now.*the arguments that the saved"):
        iter(given)
    before = {name: held for name, held in loader.state_dict().items() if name != "seed"}
    zero = data.DataLoader(Noisy(), 8, True, generator=0)
    state = {**before, "epoch": 0, "state": None}  # from when 0 was the seed of all loaders
    later = data.DataLoader(Noisy(), 8, True)
    later.load_state_dict(state)
    assert_same(later, zero)


def test_what_is_no_generator():
    with pytest.raises(ArgumentTypeError, match="must be a seed, or a generator of torch or NumPy"):
        data.DataLoader(Noisy(), generator="1")
