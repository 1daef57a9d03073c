"""Normal numbers for noise."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from loaderx import ArgumentError, ArgumentTypeError, Dataset
from loaderx.jax import augment, normal

pytestmark = pytest.mark.foreign  # jax keeps descriptors of its own

SHAPE = (64, 64, 3)
MANY = 64


@pytest.fixture(scope="module")
def drawn():
    """The numbers of many keys: neighbours that differ in one bit, and hashed ones."""
    low = np.stack([np.zeros(MANY, np.uint32), np.arange(MANY, dtype=np.uint32)], axis=1)
    keys = np.concatenate([low, low[:, ::-1], np.asarray(split(MANY))])
    made = jax.jit(jax.vmap(lambda key: normal(key, SHAPE)))(keys)
    return np.asarray(made, np.float64).reshape(len(keys), -1)


def split(count):
    return jax.random.key_data(jax.random.split(jax.random.key(1), count))


def test_they_are_normal(drawn):
    numbers = np.sort(drawn, axis=None)
    close = 5 / len(numbers) ** 0.5
    assert abs(numbers.mean()) < close
    assert abs(numbers.std() - 1) < close
    assert abs((numbers**3).mean()) < 4 * close
    assert abs((numbers**4).mean() - 3) < 10 * close
    assert 4.5 < numbers[-1] < 5.5
    quantiles = np.array([0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999])
    exact = [-3.0902, -2.3263, -1.2816, -0.6745, 0, 0.6745, 1.2816, 2.3263, 3.0902]
    found = numbers[(quantiles * len(numbers)).astype(int)]
    assert np.abs(found - exact).max() < 0.02


def test_each_key_has_all_of_it(drawn):
    close = 5 / drawn.shape[1] ** 0.5
    assert np.abs(drawn.mean(axis=1)).max() < close
    assert np.abs(drawn.std(axis=1) - 1).max() < close


@pytest.mark.parametrize("lag", [1, 2, 3, 6, 64, 192, 193, 4096])
def test_places_are_independent(drawn, lag):
    first, second = drawn[:, :-lag], drawn[:, lag:]
    close = 5 / first.size**0.5
    assert abs((first * second).mean()) < close
    assert abs(((first**2 - 1) * (second**2 - 1)).mean()) < 2 * close


def test_keys_are_independent(drawn):
    numbers = drawn.shape[1]
    for values in (drawn, (drawn**2 - 1) / 2**0.5):
        correlations = values @ values.T / numbers - np.eye(len(drawn))
        off = correlations[~np.eye(len(drawn), dtype=bool)]
        # The key of zeros is in it twice, so two entries are 1.
        assert np.sort(np.abs(off))[-3] < 6 / numbers**0.5


def test_a_number_depends_on_its_place_and_the_key():
    key = jax.random.key(7)
    again = normal(jax.random.key_data(key), (2, 6))
    assert np.array_equal(normal(key, (12,)).reshape(2, 6), again)
    assert np.array_equal(normal(key, (12,))[:5], normal(key, (5,)))
    assert normal(key).shape == ()
    assert normal(key, (0, 3)).shape == (0, 3)


def test_dtypes():
    key = jax.random.key(3)
    half = normal(key, (9,), jnp.bfloat16)
    assert half.dtype == jnp.bfloat16
    assert np.array_equal(half, normal(key, (9,)).astype(jnp.bfloat16))
    with pytest.raises(ArgumentError, match="`dtype` must be a float dtype, got int32"):
        normal(key, (9,), jnp.int32)


def test_in_a_stage_and_in_a_step():
    def noisy(key, record):
        return {"x": record["x"] + normal(key, record["x"].shape)}

    batches = Dataset.from_arrays(x=np.zeros((8, 5), np.float32)).batch(4)
    host = batches.random_map(augment(noisy), seed=1)[1]["x"]
    device = jax.jit(augment(noisy))(batches.random_keys(seed=1)[1])["x"]
    assert np.allclose(host, device)
    assert len(np.unique(host)) == 20


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (lambda: jax.random.split(jax.random.key(0), 3), r"uint32 of shape \(3, 2\)"),
        (lambda: jax.random.key(0, impl="rbg"), r"uint32 of shape \(4,\)"),
        (lambda: jnp.zeros(2), r"float32 of shape \(2,\)"),
    ],
)
def test_it_takes_one_key(key, said):
    with pytest.raises(ArgumentTypeError, match=said):
        normal(key(), (3,))


def test_shapes():
    key = jax.random.key(0)
    with pytest.raises(ArgumentTypeError, match="`shape` must be a sequence of lengths, got 5"):
        normal(key, 5)
    with pytest.raises(ArgumentError, match="`shape` must be at least 0, got -1"):
        normal(key, (3, -1))


def test_not_too_many():
    with pytest.raises(ArgumentError, match=r"fewer than 2\*\*32 numbers, got \(65536, 65536\)"):
        normal(jax.random.key(0), (1 << 16, 1 << 16))


def test_the_first_number_of_the_first_key_is_like_any_other():
    """Words of 0 were hashed to 0, which is the smallest number that there is."""
    first = [float(normal(jax.random.key(seed), (4,))[0]) for seed in range(8)]
    assert max(map(abs, first)) < 4
    assert len({round(number, 3) for number in first}) == 8
