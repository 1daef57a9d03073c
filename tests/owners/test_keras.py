"""Keras with the jax backend, compiled, with every engine: what the quick tests of it leave out."""

from __future__ import annotations

import shutil

import pytest

from keras_models import BATCHES, X, Y, looped, new_model, run, same
from loaderx import DataLoader, Dataset
from loaderx.compat.keras import adapt

pytestmark = [
    pytest.mark.owners,
    pytest.mark.foreign,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Keras with NumPy 2
]


@pytest.fixture(scope="module")
def expected():
    return looped(BATCHES.repeat(3), run_eagerly=False)


@pytest.mark.parametrize("engine", ["inline", "threads", "processes"])
@pytest.mark.parametrize("built", [True, False])
def test_epochs_of_keras_are_epochs_of_the_loader(engine, built, expected):
    if not built:
        expected = looped(BATCHES.repeat(3), built=False, run_eagerly=False)
    with DataLoader(BATCHES, engine=engine) as loader:
        made = new_model(built, run_eagerly=False)
        history = made.fit(adapt(loader), epochs=3, verbose=0)
    assert len(history.history["loss"]) == 3
    assert same(made, expected)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras, where it has no length
def test_a_stream_without_a_length():
    stream = Dataset.from_iterable(lambda: zip(X, Y, strict=True)).shuffle(seed=0, window=9)
    batches = stream.batch(10, drop_remainder=True)
    made = new_model()
    made.fit(adapt(DataLoader(batches)), epochs=2, verbose=0)
    assert same(made, looped(batches.repeat(2)))


def test_arrays_on_devices(expected):
    import jax

    made = new_model(run_eagerly=False)
    made.fit(adapt(DataLoader(BATCHES, sharding=jax.devices()[0])), epochs=3, verbose=0)
    assert same(made, expected)


def test_a_killed_run_with_a_stream(tmp_path):
    expected, _ = run("stream", tmp_path / "unbroken")
    for kill in (0, 4):
        run("stream", tmp_path / f"killed{kill}", kill)
        assert same(run("stream", tmp_path / f"killed{kill}")[0], expected)


def test_several_steps_in_one_call(tmp_path):
    options = {"steps_per_execution": 2, "run_eagerly": False}
    expected, _ = run("finite", tmp_path / "unbroken", **options)
    run("finite", tmp_path / "killed", 4, save_freq=2, **options)
    found, _ = run("finite", tmp_path / "killed", **options)
    assert same(found, expected)


@pytest.mark.parametrize("kind", ["finite", "endless"])
def test_batches_that_keras_takes_ahead_are_not_lost(kind, tmp_path, monkeypatch):
    expected, _ = run(kind, tmp_path / "unbroken")
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")  # Keras takes one ahead there
    for kill in (0, 3, 4, 6):
        run(kind, tmp_path / "killed", kill)
        found, _ = run(kind, tmp_path / "killed")
        assert same(found, expected)
        shutil.rmtree(tmp_path / "killed")
