"""Components of a join draw their own random numbers, unless equal seeds are asked for."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaderx import DataLoader, Dataset, LoaderxWarning, StateError
from loaderx.stages import WindowStage
from oracle import assert_same, same

N = 40


def numbers(n: int = N) -> Dataset[Any]:
    return Dataset.from_arrays(x=np.arange(n))


def drawn(record, rng):
    return {**record, "draw": rng.integers(0, 1 << 31)}


class Drawn(WindowStage):
    def random_map_window(self, records, rng):
        return [(i, {**record, "draw": rng.random()}) for i, record in enumerate(records)]


def fails_often(record):
    if record["x"] % 3 == 0:
        raise ValueError("no")
    return record


# Every stage that draws, as `stage(dataset, **seed)`.
BY_INDEX = {
    "shuffle": lambda ds, **seed: ds.shuffle(**seed),
    "shuffle, window": lambda ds, **seed: ds.shuffle(window=10, **seed),
    "shuffle, block": lambda ds, **seed: ds.shuffle(block=4, **seed),
    "sample": lambda ds, **seed: ds.sample(np.ones(len(ds)), **seed),
    "random_map": lambda ds, **seed: ds.random_map(drawn, **seed),
    "random_map, batched": lambda ds, **seed: ds.random_map(drawn, batched=True, **seed),
    "random_keys": lambda ds, **seed: ds.random_keys(**seed),
}
IN_STREAMS = {
    "filter, random_map": lambda ds, **seed: ds.filter(bool).random_map(drawn, **seed),
    "filter, shuffle": lambda ds, **seed: ds.filter(bool).shuffle(window=8, **seed),
    "pack, random_keys": lambda ds, **seed: (
        ds.map(lambda r: {"x": np.repeat(r["x"], 3)}).pack({"x": 9}, window=20).random_keys(**seed)
    ),
    "window stage": lambda ds, **seed: ds.apply(Drawn(window=8, **seed)),
}


def replaced(ds: Dataset[Any]) -> Dataset[Any]:
    """Which record takes the place of another is drawn, and has no seed of its own."""
    return ds.map(fails_often).on_error("replace")


def parts_of(join: str, one: Dataset[Any], other: Dataset[Any]) -> tuple[list[Any], list[Any]]:
    """What the two components of a join give."""
    if join == "zip":
        pairs = list(Dataset.zip((one, other)))
        return [a for a, _ in pairs], [b for _, b in pairs]
    if join == "dict":
        pairs = list(Dataset.zip({"b": one, "a": other}))
        return [pair["b"] for pair in pairs], [pair["a"] for pair in pairs]
    if join == "concatenate":
        found = list(Dataset.concatenate([one, other]))
        return found[: len(found) // 2], found[len(found) // 2 :]
    found = list(Dataset.mix([one, other]))
    return found[::2], found[1::2]


JOINED = [(join, stage) for join in ("zip", "dict", "concatenate", "mix") for stage in BY_INDEX] + [
    ("mix", stage) for stage in IN_STREAMS
]


@pytest.mark.parametrize(("join", "stage"), JOINED)
class TestTwoBranches:
    def stage(self, name):
        return {**BY_INDEX, **IN_STREAMS}[name]

    def test_of_one_dataset_differ(self, join, stage):
        dataset = self.stage(stage)(numbers())
        one, other = parts_of(join, dataset, dataset)
        assert len(one) == len(other) > 5
        assert not same(one, other)

    def test_have_equal_draws_where_both_have_one_seed(self, join, stage):
        dataset = self.stage(stage)(numbers(), seed=3)
        one, other = parts_of(join, dataset, dataset)
        assert same(one, other)

    def test_have_equal_draws_where_both_chains_have_one_seed(self, join, stage):
        datasets = [self.stage(stage)(numbers()).seed(3) for _ in range(2)]
        one, other = parts_of(join, *datasets)
        assert same(one, other)

    def test_differ_under_a_seed_of_the_whole(self, join, stage):
        make = self.stage(stage)
        dataset = Dataset.mix([make(numbers()), make(numbers())]).seed(5)
        found = list(dataset)
        assert not same(found[::2], found[1::2])
        assert not same(found, list(dataset.seed(6)))

    def test_the_first_draws_as_it_does_alone(self, join, stage):
        dataset = self.stage(stage)(numbers())
        one, _ = parts_of(join, dataset, dataset)
        assert same(one, list(dataset)[: len(one)])


@pytest.mark.parametrize("join", ["concatenate", "mix"])
def test_replacements_differ(join):
    one, other = parts_of(join, replaced(numbers()), replaced(numbers()))
    assert not same(one, other)
    one, other = parts_of(join, replaced(numbers()).seed(1), replaced(numbers()).seed(1))
    assert same(one, other)


def test_two_views_of_an_image():
    images = Dataset.from_arrays(image=np.arange(30 * 64).reshape(30, 64))

    def crop(record, rng):
        start = rng.integers(0, 56)
        return record["image"][start : start + 8] - record["image"][0]

    views = Dataset.zip({"a": images.random_map(crop), "b": images.random_map(crop)})
    equal = [same(pair["a"], pair["b"]) for pair in views]
    assert sum(equal) < 5


def test_a_seed_above_a_join_of_a_component_is_numbered_from_there():
    """Joins below a .seed(n) still number their components, those above it do not."""
    two = Dataset.mix([numbers().shuffle(), numbers().shuffle()]).seed(4)
    first, second = parts_of("concatenate", two, two)
    assert same(first, second)
    assert same(first, list(two))
    assert not same(first[::2], first[1::2])


# Nested joins: no two branches share a seed -----------------------------------------------------

SHAPES = st.recursive(
    st.just("leaf"),
    lambda shape: st.tuples(
        st.sampled_from(["concatenate", "mix", "zip"]), st.lists(shape, min_size=1, max_size=3)
    ),
    max_leaves=10,
)


def keys_of(shape: Any) -> Dataset[Any]:
    """A dataset whose records have the keys of all leaves: one by one, or side by side."""
    if shape == "leaf":
        return Dataset.from_arrays(x=np.zeros(1)).random_keys().map(lambda r: [r["key"]])
    kind, shapes = shape
    if kind == "zip":  # all of one length
        equal = [keys_of(shapes[0]) for _ in shapes]
        return Dataset.zip(tuple(equal)).map(lambda pair: [key for keys in pair for key in keys])
    parts = [keys_of(each) for each in shapes]
    if kind == "mix":
        return Dataset.mix(parts, stop="all_exhausted")
    return Dataset.concatenate(parts)


@settings(max_examples=150)
@given(SHAPES, st.integers(0, 3))
def test_no_two_branches_share_a_seed(shape, seed):
    keys = [key.tobytes() for keys in keys_of(shape).seed(seed) for key in keys]
    assert len(set(keys)) == len(keys)


@settings(max_examples=60)
@given(SHAPES)
def test_a_join_of_one_is_that_dataset(shape):
    dataset = keys_of(shape)
    for joined in (Dataset.concatenate([dataset]), Dataset.mix([dataset])):
        assert same(list(joined), list(dataset))


def test_paths_with_a_zero_do_not_collide():
    """(0, 1) and (1, 0): only one number of each differs from that of a dataset alone."""
    leaf = numbers().shuffle()
    pair = Dataset.zip((leaf, leaf))
    orders = [
        tuple(int(record["x"]) for record in column)
        for pairs in [list(Dataset.zip((pair, pair)))]
        for column in (
            [p[0][0] for p in pairs],
            [p[0][1] for p in pairs],
            [p[1][0] for p in pairs],
            [p[1][1] for p in pairs],
        )
    ]
    assert len(set(orders)) == 4


# What must not depend on the branch -------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("join", ["zip", "concatenate", "mix", "dict"])
def test_parts_of_a_split_stay_disjoint_and_complete(join, seed):
    one, other = numbers().split(0.5, 0.5, seed=seed)
    for parts in ((one, other), (other, one), (one.shuffle(), other.shuffle())):
        a, b = ([int(record["x"]) for record in part] for part in parts_of(join, *parts))
        assert sorted(a + b) == list(range(N))


def test_parts_of_a_split_stay_disjoint_in_nested_joins_and_under_any_seed():
    one, other = numbers().random_map(drawn).split(0.5, 0.5)
    inner = Dataset.concatenate([numbers(4).map(lambda r: {**r, "draw": r["x"]}), other])
    joined = Dataset.concatenate([one, inner]).seed(9)
    found = sorted(int(record["x"]) for record in joined)
    assert found == sorted([*range(N), *range(4)])


@pytest.mark.parametrize("join", [Dataset.concatenate, Dataset.zip, Dataset.mix])
def test_parts_of_one_shuffle_in_two_branches_warn(join):
    """They were halves of one order; now each branch shuffles by itself."""
    shuffled = numbers().shuffle()
    with pytest.warns(
        LoaderxWarning,
        match=r"take\(20\) and skip\(20\) are parts of the same shuffle\(\), but each dataset that "
        r"is joined shuffles in its own order.*shuffle\(seed=0\)",
    ):
        join([shuffled.take(20), shuffled.skip(20)])


@pytest.mark.parametrize(
    "parts",
    [
        [numbers().shuffle(seed=0).take(20), numbers().shuffle(seed=0).skip(20)],
        [(one := numbers().shuffle(seed=0)).take(20), one.skip(20)],
        [(two := numbers().shuffle().seed(1)).take(20), two.skip(20)],
        [(whole := numbers().shuffle()), whole],
        [*numbers().split(0.5, 0.5)],
    ],
)
def test_other_parts_do_not(parts):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        joined = Dataset.concatenate(parts)
    if len(joined) == N:
        assert sorted(int(record["x"]) for record in joined) == list(range(N))


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_cache_is_one_for_all_branches(on_disk, tmp_path):
    """Its rows are made once: replacements below it cannot depend on who asks first."""
    kept = replaced(numbers()).cache(*[tmp_path / "kept"] * on_disk)
    alone = list(replaced(numbers()))
    for order in ((1, 0), (0, 1)):
        found = parts_of("concatenate", kept, kept)
        for number in order:
            assert same(found[number], alone)
    assert same(list(kept.seed(7)), alone)


def test_random_stages_above_a_shared_cache_differ(tmp_path):
    kept = numbers().cache()
    one, other = parts_of("zip", kept.random_map(drawn), kept.random_map(drawn))
    assert not same(one, other)


def test_branches_are_the_same_on_every_engine_and_host():
    parts = [numbers().shuffle().random_map(drawn) for _ in range(3)]
    dataset = Dataset.mix(parts).shuffle().batch(12)
    expected = list(dataset)
    for engine in ("inline", "threads"):
        with DataLoader(dataset, engine=engine) as loader:
            assert_same(list(loader), expected)
    halves = [list(DataLoader(dataset, engine="inline", shard=(h, 2))) for h in range(2)]
    for whole, *each in zip(expected, *halves, strict=True):
        joined = {name: np.concatenate([half[name] for half in each]) for name in whole}
        assert same(joined, whole)


def test_a_state_knows_the_place_of_a_component():
    """Another order of the components is another stream, even of equal ones."""
    a, b = numbers().shuffle(), numbers().map(lambda r: r).shuffle()
    state = iter(DataLoader(Dataset.concatenate([a, b.seed(0)]))).get_state()
    with pytest.raises(StateError, match="concatenate"):
        iter(DataLoader(Dataset.concatenate([a, b]))).set_state(state)
