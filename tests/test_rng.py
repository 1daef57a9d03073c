"""Draws: addressed, vectorised, uniform, independent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderx import ArgumentError, ArgumentTypeError, DataLoader, Dataset, RecordError
from loaderx.rng import (
    FEW,
    BatchGenerator,
    fold,
    fold_int,
    key_words,
    mix64,
    mix_int,
    record_generators,
    stage_keys,
)


@given(st.integers(0, 2**64 - 1))
def test_mixing_an_int_equals_mixing_an_array(value):
    assert int(mix64(np.array([value, 0], np.uint64))[0]) == mix_int(value)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**62), st.integers(1, 2**60))
def test_folding_ints_equals_folding_arrays(key, value, tag):
    keys, values = np.array([key, 1], np.uint64), np.array([value, 2])
    expected = fold_int(key, value, tag)
    assert int(fold(keys, values, tag)[0]) == expected
    assert int(fold(keys[:1], values[:1], tag)[0]) == expected
    assert int(fold(keys[:1], values, tag)[0]) == expected


def keys(n: int, seed: int = 0) -> np.ndarray:
    return stage_keys(np.arange(n, dtype=np.uint64), seed, 1)


def test_a_batch_generator_does_not_depend_on_the_batch():
    whole = BatchGenerator(keys(64))
    parts = [BatchGenerator(keys(64)[i : i + 7]) for i in range(0, 64, 7)]
    calls = [
        lambda rng: rng.random(),
        lambda rng: rng.integers(3, 90, size=(2, 2)),
        lambda rng: rng.normal(1, 2, size=3),
        lambda rng: rng.uniform(-1, 1),
        lambda rng: rng.random(dtype=np.float32),
        lambda rng: rng.random(size=(20, 20), dtype=np.float32),
        lambda rng: rng.standard_normal(size=500),
        lambda rng: rng.integers(0, 256, size=(10, 20), dtype=np.uint8),
        lambda rng: rng.normal(size=FEW + 1),
        lambda rng: rng.random(),
    ]
    for call in calls:
        assert np.array_equal(call(whole), np.concatenate([call(part) for part in parts]))


@pytest.mark.parametrize("batch", [1, 3, 8, 30])
def test_vectorised_draws_are_the_same_for_any_batch_size(batch):
    def draw(element, rng):
        return {"r": rng.random(size=2), "i": rng.integers(0, 100)}

    dataset = Dataset.from_arrays(x=np.arange(30)).shuffle(4)
    one = [e for b in dataset.batch(batch).random_map(draw) for e in zip(b["r"], b["i"])]
    reference = dataset.batch(7).random_map(draw)
    other = [e for b in reference for e in zip(b["r"], b["i"])]
    for (r, i), (s, j) in zip(one, other, strict=True):
        assert np.array_equal(r, s)
        assert i == j


def test_draws_are_uniform_and_independent():
    n = 200_000
    rng = BatchGenerator(keys(n))
    first, second = rng.random(), rng.random()
    for draw in (first, second):
        counts = np.bincount((draw * 100).astype(int), minlength=100)
        assert abs(((counts - n / 100) ** 2 / (n / 100)).sum() - 99) < 5 * (2 * 99) ** 0.5
    limit = 5 / n**0.5
    assert abs(np.corrcoef(first, second)[0, 1]) < limit  # draws of one record
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < limit  # neighbouring records
    other = BatchGenerator(keys(n, seed=1)).random()
    assert abs(np.corrcoef(first, other)[0, 1]) < limit  # neighbouring seeds
    normal = rng.standard_normal()
    assert abs(normal.mean()) < limit
    assert abs(normal.std() - 1) < limit
    integers = rng.integers(-3, 4)
    assert integers.min() == -3
    assert integers.max() == 3
    assert rng.random(dtype=np.float32).dtype == np.float32


def test_many_draws_are_uniform_and_independent():
    records, numbers = 200, 1000
    rng = BatchGenerator(keys(records))
    first, second = rng.random(size=numbers), rng.random(size=numbers)
    normal = rng.standard_normal(size=numbers, dtype=np.float32)
    other = BatchGenerator(keys(records, seed=1)).random(size=numbers)
    limit = 5 / (records * numbers) ** 0.5
    flat = first.ravel()
    assert abs(flat.mean() - 0.5) < limit
    assert abs(np.corrcoef(flat, second.ravel())[0, 1]) < limit  # draws of one record
    assert abs(np.corrcoef(first[1:].ravel(), first[:-1].ravel())[0, 1]) < limit  # neighbours
    assert abs(np.corrcoef(flat, other.ravel())[0, 1]) < limit  # neighbouring seeds
    assert normal.dtype == np.float32
    assert abs(normal.mean()) < limit
    assert abs(normal.std() - 1) < limit
    integers = rng.integers(-3, 4, size=numbers)
    assert np.unique(integers).tolist() == list(range(-3, 4))


@pytest.mark.parametrize("count", [1, FEW, FEW + 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("method", ["random", "standard_normal"])
def test_numbers_can_be_written_into_an_array(method, dtype, count):
    out = np.full((4, count), np.nan, dtype)
    made = getattr(BatchGenerator(keys(4)), method)(size=(..., count), dtype=dtype, out=out)
    assert made is out
    plain = getattr(BatchGenerator(keys(4)), method)(size=(..., count), dtype=dtype)
    assert np.array_equal(made, plain)


@pytest.mark.parametrize(
    "out",
    [np.empty((3, 5), np.float32), np.empty((4, 5), np.float64), np.empty((5, 4), np.float32).T],
)
def test_an_array_that_does_not_fit(out):
    with pytest.raises(ArgumentError, match=r"`out` must be a contiguous array of float32"):
        BatchGenerator(keys(4)).random(size=5, out=out)


FLOATS = {
    "random": lambda rng, **options: rng.random(**options),
    "uniform": lambda rng, **options: rng.uniform(0.8, 1.2, **options),
    "standard_normal": lambda rng, **options: rng.standard_normal(**options),
    "normal": lambda rng, **options: rng.normal(1, 0.1, **options),
    "uniform of arrays": lambda rng, **options: rng.uniform(
        np.zeros((4, *options.get("size", ()))), 2.0, **options
    ),
}


@pytest.mark.parametrize("size", [(), (3,), (20, 20)])  # hashed, and of NumPy's own generators
@pytest.mark.parametrize("draw", FLOATS.values(), ids=FLOATS)
class TestFloats:
    def test_are_float32_unless_asked(self, draw, size):
        assert draw(BatchGenerator(keys(4)), size=size).dtype == np.float32
        for dtype in (np.float32, np.float64):
            assert draw(BatchGenerator(keys(4)), size=size, dtype=dtype).dtype == dtype

    def test_of_both_kinds_come_after_the_same_draws(self, draw, size):
        """The dtype of a draw does not move the next one."""
        after = []
        for dtype in (np.float32, np.float64):
            rng = BatchGenerator(keys(4))
            draw(rng, size=size, dtype=dtype)
            after.append(rng.integers(0, 1 << 30))
        assert np.array_equal(*after)

    def test_leave_images_float32(self, draw, size):
        images = Dataset.from_arrays(np.ones((8, *size), np.float32))
        change = lambda batch, rng: batch * draw(rng, size=size)
        assert images.batch(4).random_map(change)[0].dtype == np.float32
        assert images.random_map(change, batched=True).batch(4)[0].dtype == np.float32


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_uniform_never_reaches_its_end(dtype):
    low, high = 1000.0, 1000.001  # a few float32 numbers lie between them
    drawn = BatchGenerator(keys(20_000)).uniform(low, high, dtype=dtype)
    assert drawn.min() >= np.asarray(low, dtype)
    assert drawn.max() < np.asarray(high, dtype)
    assert (BatchGenerator(keys(4)).uniform(2, 2) == 2).all()


def test_generators_of_records_are_unrelated():
    draws = np.array([g.random(4) for g in record_generators(keys(20_000))])
    correlation = np.corrcoef(draws.T)
    assert abs(correlation - np.eye(4)).max() < 5 / 20_000**0.5
    assert abs(np.corrcoef(draws[1:, 0], draws[:-1, 0])[0, 1]) < 5 / 20_000**0.5
    assert abs(draws.mean() - 0.5) < 0.005


def test_seed_and_index_do_not_add_up():
    one = Dataset.range(50).random_map(lambda x, rng: rng.integers(0, 2**60), seed=0)
    other = Dataset.range(50).random_map(lambda x, rng: rng.integers(0, 2**60), seed=1)
    assert not set(map(int, one)) & set(map(int, other))


def test_record_generators_can_spawn_and_jump():
    (generator,) = record_generators(keys(1))
    assert isinstance(generator, np.random.Generator)
    assert generator.permutation(5).shape == (5,)
    assert generator.bit_generator.jumped() is not None


def test_key_words_differ():
    words = key_words(keys(100), 3)
    assert len(np.unique(words)) == 300


@pytest.mark.parametrize("bounds", [(0, 0), (5, 3), (0, 2**33)])
def test_bad_integer_ranges(bounds):
    with pytest.raises(ArgumentError, match="low < high and a range of at most"):
        BatchGenerator(keys(2)).integers(*bounds)


def test_bad_dtype():
    with pytest.raises(ArgumentError, match="float32 or float64, got int32"):
        BatchGenerator(keys(2)).random(dtype=np.int32)


def test_random_keys_are_key_data():
    dataset = Dataset.from_arrays(x=np.arange(10))
    rows = np.stack([record["key"] for record in dataset.random_keys()])
    batch = dataset.batch(10).random_keys("key")[0]
    assert rows.dtype == np.uint32
    assert rows.shape == (10, 2)
    assert np.array_equal(batch["key"], rows)
    assert len(np.unique(rows, axis=0)) == 10
    assert repr(dataset.random_keys().element_spec["key"]) == "uint32[2]"
    assert repr(dataset.batch(5).random_keys().element_spec["key"]) == "uint32[5,2]"


# `size` after batch -----------------------------------------------------------------------------

DRAWS = {
    "random": lambda rng, size: rng.random(size),
    "random32": lambda rng, size: rng.random(size, np.float32),
    "uniform": lambda rng, size: rng.uniform(-1, 1, size),
    "integers": lambda rng, size: rng.integers(0, 9, size),
    "standard_normal": lambda rng, size: rng.standard_normal(size),
    "normal": lambda rng, size: rng.normal(size=size),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("size", [6, (6,), (6, 1), (6, 28, 28), [6, 3], np.int64(6)])
def test_a_size_that_counts_the_records_is_refused(draw, size):
    with pytest.raises(ArgumentError, match=r"`size` is the shape of one record's draw") as caught:
        draw(BatchGenerator(keys(6)), size)
    assert "6 records" in str(caught.value)


def test_the_refusal_says_what_to_write():
    rng = BatchGenerator(keys(6))
    with pytest.raises(
        ArgumentError, match=r"write size=\(28, 28\), .*write size=\(\.\.\., 6, 28, 28\)"
    ):
        rng.normal(size=(6, 28, 28))
    with pytest.raises(ArgumentError, match=r"write size=\(3,\), .*write size=\(\.\.\., 6, 3\)"):
        rng.normal(size=(6, 3))
    with pytest.raises(ArgumentError, match=r"leave `size` out, .*write size=\(\.\.\., 6\)"):
        rng.random(6)


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_dots_stand_for_the_records(draw):
    """So a size can be written that means the same for every batch size and number of hosts."""
    for size in [(), (3,), (2, 3)]:
        plain = draw(BatchGenerator(keys(6)), size)
        assert plain.shape == (6, *size)
        assert np.array_equal(draw(BatchGenerator(keys(6)), (..., *size)), plain)
    square = draw(BatchGenerator(keys(6)), (..., 6, 6))
    assert square.shape == (6, 6, 6)
    parts = [draw(BatchGenerator(keys(6)[i : i + 3]), (..., 6, 6)) for i in (0, 3)]
    assert np.array_equal(np.concatenate(parts), square)


def test_sizes_as_numpy_takes_them():
    rng = BatchGenerator(keys(4))
    assert rng.random(None).shape == (4,)
    assert rng.random([2, 3]).shape == (4, 2, 3)
    assert rng.random((np.int64(2), 0)).shape == (4, 2, 0)
    for bad in [1.5, "3", (2, 1.5), (2, ...), (..., ...), True]:
        with pytest.raises(ArgumentTypeError, match=r"`size` must be an integer"):
            rng.random(bad)
    with pytest.raises(ArgumentError, match=r"`size` must be at least 0, got -1"):
        rng.random((2, -1))


def test_one_record_may_have_a_size_that_begins_with_one():
    """`element_spec` and ``dataset[i]`` read one record, whatever the batch size."""
    assert BatchGenerator(keys(1)).uniform(size=(1, 1)).shape == (1, 1, 1)

    def brighten(run, rng):
        return run * rng.uniform(0.8, 1.2, size=(1, 1))

    images = Dataset.from_arrays(np.ones((5, 4, 3), np.float32))
    assert repr(images.random_map(brighten, batched=True).element_spec) == "float32[4,3]"
    assert [b.shape for b in images.batch(4).random_map(brighten)] == [(4, 4, 3), (1, 4, 3)]


@pytest.mark.parametrize(
    "habit",
    [
        lambda batch, rng: {"x": batch["x"] + rng.normal(size=batch["x"].shape)},
        lambda batch, rng: {"x": batch["x"] * rng.uniform(size=(len(batch["x"]), 1))},
        lambda batch, rng: {"x": batch["x"] + rng.random(len(batch["x"]))[:, None]},
    ],
)
def test_habits_from_numpy_are_refused_at_the_first_batch(habit):
    dataset = Dataset.from_arrays(x=np.zeros((11, 3)))
    for chain in (
        dataset.batch(4).random_map(habit),
        dataset.batch(40).random_map(habit),  # one short batch
        dataset.random_map(habit, batched=True).batch(4),
        dataset.random_map(habit, batched=True).batch(40),
        dataset.filter(lambda x: True).batch(4).random_map(habit),
    ):
        with pytest.raises(RecordError, match=r"failed on .*`size` is the shape of one record's"):
            next(iter(chain))


@pytest.mark.parametrize("size", [2, 3])
def test_a_constant_size_does_not_fail_in_a_short_batch(size):
    def draw(batch, rng):
        return {"r": rng.random(size)}

    dataset = Dataset.from_arrays(x=np.arange(8 + size))
    for chain in (
        dataset.batch(8).random_map(draw),
        dataset.random_map(draw, batched=True).batch(8),
        dataset.filter(lambda record: True).batch(8).random_map(draw),
    ):
        assert [b["r"].shape for b in chain] == [(8, size), (size, size)]


def test_a_constant_size_does_not_fail_where_the_number_of_records_varies():
    def draw(run, rng):
        return {"r": rng.random(3)}

    rows = Dataset.from_arrays(x=np.arange(27))
    drawn = rows.random_map(draw, batched=True)
    for chain in (
        Dataset.mix([drawn, drawn], [1, 2]).batch(8),
        Dataset.concatenate(drawn[:11], drawn).batch(8),
        rows.filter(lambda r: r["x"] < 3).random_map(draw, batched=True).batch(8),
        rows.filter(lambda r: True).shuffle(window=3).random_map(draw, batched=True).batch(8),
        rows.batch(9).random_map(draw).unbatch().batch(8),
    ):
        assert all(batch["r"].shape[1:] == (3,) for batch in chain)


def test_a_size_on_several_hosts():
    def draw(size):
        return Dataset.range(16).batch(8).random_map(lambda batch, rng: rng.random(size))

    whole = next(iter(DataLoader(draw((..., 4)))))
    parts = [next(iter(DataLoader(draw((..., 4)), shard=(host, 2)))) for host in range(2)]
    assert np.array_equal(np.concatenate(parts), whole)
    with pytest.raises(RecordError, match="for 4 records"):
        next(iter(DataLoader(draw(4), shard=(0, 2))))


def test_bounds_must_not_add_axes():
    rng = BatchGenerator(keys(4))
    column = np.ones((4, 1))
    with pytest.raises(
        ArgumentError, match=r"`loc` and `scale` of shapes \(4, 1\) and \(\) .* \(4,\)"
    ):
        rng.normal(column)
    with pytest.raises(ArgumentError, match=r"`low` and `high` of shapes \(\) and \(4, 1\)"):
        rng.uniform(0, column)
    with pytest.raises(ArgumentError, match=r"`low` and `high` of shapes \(\) and \(5,\)"):
        rng.uniform(0, np.ones(5))
    assert rng.normal(column, size=3).shape == (4, 3)  # a mean per record
    assert rng.normal(np.zeros(3), size=3).shape == (4, 3)  # a mean per channel
    assert rng.uniform(np.zeros(4), np.ones(4)).shape == (4,)
