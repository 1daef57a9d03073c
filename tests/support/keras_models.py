"""Models of Keras that a loader trains, as a whole, and in runs that are killed."""

from __future__ import annotations

import os

import numpy as np
import pytest

from loaderx import DataLoader, Dataset
from loaderx.compat.keras import adapt, backup

os.environ.setdefault("KERAS_BACKEND", "jax")
keras = pytest.importorskip("keras", reason="keras is not installed")
if keras.backend.backend() != "jax":
    pytest.skip("Keras runs on another backend than jax", allow_module_level=True)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 3)).astype(np.float32)
Y = (X @ RNG.normal(size=(3, 1))).astype(np.float32)
BATCHES = Dataset.from_arrays(X, Y).shuffle(seed=3).batch(6)  # 5 of them


def new_model(built=True, **compiled):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(2, activation="tanh"), keras.layers.Dense(1)]
    made = keras.Sequential([keras.Input((3,)), *layers] if built else layers)
    # Eager steps need no compilation, which would take most of the time of these tests.
    options = {"metrics": ["mae"], "run_eagerly": True, **compiled}
    made.compile(keras.optimizers.Adam(0.05), loss="mse", **options)
    return made


def looped(batches, **options):
    """A model that was trained batch by batch."""
    made = new_model(**options)
    for batch in batches:
        made.train_on_batch(*batch)
    return made


def same(one, other):
    pairs = zip(one.get_weights(), other.get_weights(), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


class Seen(keras.callbacks.Callback):
    """The losses of all batches."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(float(logs["loss"]))


class Kill(keras.callbacks.Callback):
    """Stops the program behind a number of batches."""

    def __init__(self, after=1):
        super().__init__()
        self.left = after

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


def chains(kind):
    stream = Dataset.from_source([(x, y) for x, y in zip(X, Y, strict=True)])
    return {
        "finite": (BATCHES, {}),
        "endless": (BATCHES.repeat(), {"steps_per_epoch": 4}),
        "stream": (stream.filter(lambda r: r[0][0] < 9).batch(6).repeat(), {"steps_per_epoch": 3}),
    }[kind]


def run(kind, folder, kill=None, save_freq=1, epochs=3, calls=(), **compiled):
    """A program that goes on where it was, which is killed while it trains on some batch."""
    dataset, options = chains(kind)
    with DataLoader(dataset) as loader:
        made, batches, seen = new_model(**compiled), adapt(loader), Seen()
        saves = backup(batches, folder, save_freq=save_freq)
        calls = [saves, seen, *calls] if kill is None else [saves, seen, Kill(kill)]
        first = saves.restore(made)
        try:
            made.fit(
                batches, initial_epoch=first, epochs=epochs, callbacks=calls, verbose=0, **options
            )
        except KeyboardInterrupt:
            return None, seen.losses
        return made, seen.losses
