"""Keras with the jax backend is trained by a loader, through what `fit` takes: see docs/jax.md."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from loaderx import DataLoader, Dataset
from loaderx.compat import torch as compat

os.environ.setdefault("KERAS_BACKEND", "jax")
pytestmark = [
    pytest.mark.owners,
    pytest.mark.foreign,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Keras with NumPy 2
]
keras = pytest.importorskip("keras", reason="keras is not installed")
if keras.backend.backend() != "jax":
    pytest.skip("Keras runs on another backend than jax", allow_module_level=True)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 5)).astype(np.float32)
Y = (X @ RNG.normal(size=(5, 1))).astype(np.float32)
EPOCHS = 3


def model():
    keras.utils.set_random_seed(1)
    made = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    made.compile(optimizer="sgd", loss="mse")
    return made


def trained(x, shuffle=False, **options):
    made = model()
    history = made.fit(x, epochs=EPOCHS, shuffle=shuffle, verbose=0, **options)
    assert len(history.history["loss"]) == EPOCHS
    return made


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one.get_weights(), other.get_weights()))


@pytest.fixture
def batches():
    """Shuffled anew in every epoch."""
    return Dataset.from_arrays(X, Y).shuffle(seed=3).batch(16)


@pytest.fixture
def expected(batches):
    """Trained batch by batch."""
    made = model()
    for x, y in batches.repeat(EPOCHS):
        made.train_on_batch(x, y)
    return made


class Batches(keras.utils.PyDataset):
    """A loader as Keras wants it: batches by number, and told when an epoch ends."""

    def __init__(self, loader, **options):
        super().__init__(**options)
        self.loader, self.epoch, self.read = loader, 0, 0
        self.batches, self.lock = loader.epoch(0), threading.Lock()

    def __len__(self):
        return len(self.loader)

    def __getitem__(self, index):
        with self.lock:  # with workers > 1 Keras calls this from several threads
            self.read += 1
            step = self.epoch * len(self) + index
            if self.batches.step != step:
                self.batches.seek(step)
            return next(self.batches)

    def on_epoch_end(self):
        with self.lock:
            self.epoch += self.read >= len(self)  # Keras looks at the first batch before it trains
            self.read = 0
            self.batches = self.loader.epoch(self.epoch)


@pytest.mark.parametrize("engine", ["inline", "threads"])
def test_a_generator(batches, expected, engine):
    with DataLoader(batches.repeat(), engine=engine) as loader:
        found = trained((batch for batch in loader), steps_per_epoch=len(batches))
    assert same(found, expected)


def test_a_py_dataset(batches, expected):
    with DataLoader(batches, engine="inline") as loader:
        assert same(trained(Batches(loader)), expected)


def test_a_py_dataset_with_threads(batches, expected):
    with DataLoader(batches, engine="inline") as loader:
        assert same(trained(Batches(loader, workers=4)), expected)


def test_a_py_dataset_in_an_order_of_keras(batches):
    with DataLoader(batches, engine="inline") as loader:
        trained(Batches(loader), shuffle=True)


def test_evaluate_and_predict(batches):
    made = trained((batch for batch in DataLoader(batches.repeat())), steps_per_epoch=4)
    ordered = Dataset.from_arrays(X, Y).batch(16)
    expected = made.evaluate(X, Y, batch_size=16, verbose=0)
    given = (batch for batch in DataLoader(ordered))
    assert np.isclose(made.evaluate(given, steps=4, verbose=0), expected)
    assert np.isclose(made.evaluate(Batches(DataLoader(ordered)), verbose=0), expected)
    inputs = ((x,) for x, _ in DataLoader(ordered))
    found = made.predict(inputs, steps=4, verbose=0)
    assert np.allclose(found, made.predict(X, verbose=0), atol=1e-6)


def test_validation_data(batches):
    ordered = Batches(DataLoader(Dataset.from_arrays(X, Y).batch(16)))
    made = model()
    with DataLoader(batches.repeat()) as loader:
        history = made.fit(
            (batch for batch in loader),
            steps_per_epoch=4,
            epochs=2,
            shuffle=False,
            validation_data=ordered,
            verbose=0,
        )
    assert len(history.history["val_loss"]) == 2


def test_arrays_on_devices(batches, expected):
    import jax

    with DataLoader(batches.repeat(), sharding=jax.devices()[0]) as loader:
        found = trained((batch for batch in loader), steps_per_epoch=len(batches))
    assert same(found, expected)


def test_the_words_of_torch():
    loader = compat.DataLoader(list(zip(X, Y)), batch_size=16, shuffle=True)

    def endless():
        while True:
            yield from map(tuple, loader)

    trained(endless(), steps_per_epoch=len(loader))


def test_a_loader_itself_is_refused(batches):
    """What docs/jax.md says: if Keras takes iterables one day, it can say so."""
    with pytest.raises(ValueError, match="Unrecognized data type"):
        model().fit(DataLoader(batches), verbose=0)
