"""Keras with the jax backend, trained by a loader: the weights are those of a plain loop."""

from __future__ import annotations

import contextlib
import itertools
import sys

import numpy as np
import pytest

import loaderx as lx
from keras_models import BATCHES, Kill, Seen, X, Y, keras, looped, new_model, run, same
from loaderx import ArgumentError, ArgumentTypeError, DataLoader, Dataset, MissingPackageError
from loaderx.compat.keras import adapt, backup

pytestmark = [
    pytest.mark.foreign,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Keras with NumPy 2
]


@pytest.fixture(scope="module")
def expected():
    return looped(BATCHES.repeat(3))


@pytest.mark.parametrize("built", [True, False])
def test_epochs_of_keras_are_epochs_of_the_loader(built):
    made = new_model(built)
    history = made.fit(adapt(DataLoader(BATCHES)), epochs=3, verbose=0)
    assert len(history.history["loss"]) == 3
    assert same(made, looped(BATCHES.repeat(3), built=built))


def test_a_second_fit_goes_on_with_the_next_epoch(expected):
    made, batches = new_model(), adapt(DataLoader(BATCHES))
    for epochs in (1, 2):
        made.fit(batches, epochs=epochs, verbose=0)
    assert same(made, expected)


@pytest.mark.parametrize("steps", [1, 4])
def test_an_endless_loader(steps):
    loader = DataLoader(BATCHES.repeat())
    made, batches = new_model(), adapt(loader)
    made.fit(batches, steps_per_epoch=steps, epochs=2, shuffle=False, verbose=0)
    made.fit(batches, steps_per_epoch=steps, epochs=1, shuffle=False, verbose=0)
    assert same(made, looped(itertools.islice(DataLoader(BATCHES.repeat()), 3 * steps)))


def test_a_model_compiled_again_looks_at_a_batch_again():
    made, batches = new_model(), adapt(DataLoader(BATCHES.repeat()))
    made.fit(batches, steps_per_epoch=3, verbose=0)
    made.compile(made.optimizer, loss="mse", metrics=["mse"], run_eagerly=True)
    made.fit(batches, steps_per_epoch=4, verbose=0)
    assert same(made, looped(itertools.islice(DataLoader(BATCHES.repeat()), 7)))


def test_a_reset_without_the_end_of_an_epoch():
    """As older versions of Keras look at a batch."""
    batches = adapt(DataLoader(BATCHES))
    batches.on_epoch_begin()
    looked = next(iter(batches.get_jax_iterator()))
    assert batches.num_batches == 5
    batches.on_epoch_begin()
    np.testing.assert_equal(looked, next(iter(batches.get_jax_iterator())))


def test_one_batch_is_an_epoch():
    whole = Dataset.from_arrays(X[:6], Y[:6]).shuffle(seed=1).batch(6)
    made = new_model()
    made.fit(adapt(DataLoader(whole)), epochs=3, verbose=0)
    assert same(made, looped(whole.repeat(3)))


def test_an_epoch_that_was_broken_off_begins_again():
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                raise KeyboardInterrupt

    made, batches = new_model(), adapt(DataLoader(BATCHES))
    with pytest.raises(KeyboardInterrupt):
        made.fit(batches, verbose=0, callbacks=[Stop()])
    made.fit(batches, verbose=0)
    assert same(made, looped([*BATCHES.take(3), *BATCHES]))


def test_validation_reads_the_same_batches_every_time():
    ordered = DataLoader(Dataset.from_arrays(X, Y).batch(6))
    shuffled = DataLoader(BATCHES, reshuffle=False)
    found = []
    for loader, options in ((ordered, {}), (shuffled, {"validation_steps": 2})):
        made, values = new_model(), adapt(loader)
        made.fit(adapt(DataLoader(BATCHES)), validation_data=values, epochs=3, verbose=0, **options)
        found.append(made)
        history = made.history.history["val_loss"]
        steps = options.get("validation_steps")
        again = made.evaluate(adapt(loader), steps=steps, verbose=0, return_dict=True)
        assert history[-1] == again["loss"]
        assert len(history) == 3
    assert same(*found)
    assert np.isclose(
        made.evaluate(adapt(ordered), verbose=0)[0], made.evaluate(X, Y, verbose=0)[0]
    )


@pytest.mark.parametrize("built", [True, False])
def test_predictions_are_in_order(built):
    made, batches = new_model(built=built), adapt(DataLoader(Dataset.from_arrays(X, Y).batch(6)))
    for _ in range(2):
        found = made.predict(batches, verbose=0)
        assert np.allclose(found, made.predict(X, verbose=0), atol=1e-6)


def test_leaves_by_name_and_weights_of_padding():
    leaves = Dataset.from_arrays(pixels=X, label=Y, other=Y).batch(8, pad_remainder=True)
    rows = Dataset.from_arrays(X, Y).batch(8)
    named = {"x": "pixels", "y": "label", "sample_weight": "mask"}
    made = new_model()
    made.compile("sgd", "mse", weighted_metrics=["mae"], run_eagerly=True)
    padded = made.evaluate(adapt(DataLoader(leaves), **named), verbose=0)
    plain = made.evaluate(adapt(DataLoader(rows)), verbose=0)
    assert np.isclose(padded[1], plain[1])
    assert np.isclose(padded[0] * 32 / 30, plain[0])  # Keras divides by all rows of a batch

    inputs = [keras.Input((3,), name="pixels"), keras.Input((1,), name="other")]
    made = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(inputs)))
    only = adapt(DataLoader(leaves), x=["pixels", "other"])
    assert made.predict(only, verbose=0).shape == (32, 1)


# Backups ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["finite", "endless"])
def test_a_killed_run_goes_on_behind_the_last_batch(kind, tmp_path):
    expected, losses = run(kind, tmp_path / "unbroken")
    for kill in (0, 4, 7):
        folder = tmp_path / f"killed{kill}"
        assert run(kind, folder, kill)[0] is None
        found, rest = run(kind, folder)
        assert same(found, expected)
        # The batch of the kill was saved before it, unless it was the last one of an epoch.
        assert len(rest) - (len(losses) - kill) in (0, -1)
    assert run(kind, folder)[1] == []  # all is trained


def test_a_run_that_is_killed_again_and_again(tmp_path):
    expected, _ = run("finite", tmp_path / "unbroken", save_freq=None)
    kept = []
    for save_freq, kill in ((2, 3), (2, 0), (2, 2), (3, 4), (None, 3)):
        assert run("finite", tmp_path / "killed", kill, save_freq)[0] is None
        kept.append(len(list((tmp_path / "killed").glob("*.weights.h5"))))
    found, _ = run("finite", tmp_path / "killed")
    assert same(found, expected)
    assert set(kept) == {1}


class Stop(keras.callbacks.Callback):
    """Ends the training within the first epoch, as on a signal."""

    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = True


@pytest.mark.parametrize("kind", ["finite", "endless"])
def test_a_run_that_is_stopped_within_an_epoch(kind, tmp_path):
    expected, _ = run(kind, tmp_path / "unbroken")
    losses = []
    for _ in range(3):
        losses += run(kind, tmp_path / "stopped", calls=[Stop()])[1]
    found, rest = run(kind, tmp_path / "stopped")
    assert same(found, expected)
    assert len(losses) == 3
    assert len(rest) == (15 if kind == "finite" else 12) - 3


@pytest.mark.parametrize("saved", [0, 3])
@pytest.mark.parametrize("end", [Kill, Stop])
def test_a_second_fit_behind_one_that_was_broken_off(saved, end, tmp_path):
    """In the same program: the epoch begins again where the first `fit` began it."""
    if saved:
        run("finite", tmp_path, saved - 1)
    made, batches, seen = new_model(), adapt(DataLoader(BATCHES)), Seen()
    saves = backup(batches, tmp_path, save_freq=1)
    first = saves.restore(made)
    with contextlib.suppress(KeyboardInterrupt):
        made.fit(batches, initial_epoch=first, epochs=2, verbose=0, callbacks=[saves, end()])
    made.fit(batches, initial_epoch=first, epochs=2, verbose=0, callbacks=[saves, seen])
    assert len(seen.losses) == 10 - saved
    assert run("finite", tmp_path, epochs=2)[1] == []


def test_a_state_of_another_chain_leaves_the_model_alone(tmp_path):
    run("finite", tmp_path, 4)
    other = adapt(DataLoader(BATCHES.map(lambda batch: batch)))
    made = new_model()
    with pytest.raises(lx.StateError, match="belongs to another chain.*Pass strict=False"):
        backup(other, tmp_path).restore(made)
    assert same(made, new_model())
    with pytest.warns(lx.LoaderxWarning, match="Continuing at step 4"):
        assert backup(other, tmp_path).restore(made, strict=False) == 0
    assert not same(made, new_model())


def test_the_position_by_hand():
    with DataLoader(BATCHES) as loader:
        batches = adapt(loader)
        new_model().fit(batches, epochs=2, verbose=0)
        state = batches.get_state()
    assert (state["step"], state["epoch"]) == (10, 2)
    again = adapt(DataLoader(BATCHES))
    again.set_state(state)
    made = new_model()
    made.fit(again, verbose=0)
    assert same(made, looped(DataLoader(BATCHES).epoch(2)))
    other = adapt(DataLoader(BATCHES.map(lambda batch: batch)))
    with pytest.raises(lx.StateError, match="belongs to another chain"):
        other.set_state(state)


# Errors -----------------------------------------------------------------------------------------


def test_messages(tmp_path):
    loader = DataLoader(Dataset.from_arrays(pixels=X, label=Y).batch(6))
    for names in ({"y": "label"}, {"x": "pixels", "sample_weight": "mask"}):
        with pytest.raises(ArgumentError, match="`y` needs `x`, and `sample_weight` both: name"):
            adapt(loader, **names)
    with pytest.raises(ArgumentError) as caught:
        new_model().fit(adapt(loader, x="image", y="label"), verbose=0)
    assert "the leaves ('image', 'label', None), and a batch has ['pixels', 'label']" in str(
        caught.value
    )
    with pytest.raises(ArgumentError, match="and a batch has tuple"):
        new_model().fit(adapt(DataLoader(BATCHES), x="image", y="label"), verbose=0)


def test_what_cannot_be_adapted_or_restored(tmp_path):
    with pytest.raises(ArgumentTypeError) as caught:
        adapt(BATCHES)
    assert str(caught.value) == (
        "`adapt` takes a loaderx.DataLoader, got Dataset: write adapt(DataLoader(...))."
    )
    batches = adapt(DataLoader(BATCHES))
    saves = backup(batches, tmp_path)
    uncompiled = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    for made in (new_model(built=False), uncompiled):
        with pytest.raises(
            ArgumentError, match="that is built and compiled: begin it with a keras.Input, or"
        ):
            saves.restore(made)
    with pytest.raises(ArgumentTypeError, match="what `adapt` returned, got DataLoader: write"):
        backup(DataLoader(BATCHES), tmp_path)
    with pytest.raises(ArgumentError, match="`save_freq` must be at least 1, got 0"):
        backup(batches, tmp_path, save_freq=0)


def test_another_backend(monkeypatch):
    monkeypatch.setattr("keras.backend.backend", lambda: "torch")
    with pytest.raises(MissingPackageError, match="must run on jax, and there is torch: pip"):
        adapt(DataLoader(BATCHES))


def test_without_keras(monkeypatch):
    monkeypatch.setitem(sys.modules, "keras", None)
    with pytest.raises(MissingPackageError, match=r"fails .*: pip install 'loaderx-jax\[keras\]'"):
        adapt(DataLoader(BATCHES))


def test_a_loader_itself_is_refused():
    """What docs/jax.md says: if Keras takes iterables one day, it can say so."""
    with pytest.raises(ValueError, match="Unrecognized data type"):
        new_model().fit(DataLoader(BATCHES), verbose=0)
