"""Keras 3 is trained by a loader: `adapt` for ``fit``, `backup` for runs that may be killed.

Keras takes its own ``DataAdapter`` wherever it takes data, and asks it for batches in their order,
unlike a ``PyDataset``, whose batches ``fit`` asks for in an order of its own.  Before it trains,
Keras may look at a batch to build the model, and resets the adapter then: so what was read since an
epoch began is read again after a reset.  Keras is imported when it is first needed.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from loaderx import ArgumentError, ArgumentTypeError, DataLoader, MissingPackageError
from loaderx.extend import check_int

__all__ = ["adapt", "backup"]


def __dir__() -> list[str]:
    return __all__


def adapt(
    loader: DataLoader[Any],
    *,
    x: str | Sequence[str] | None = None,
    y: str | None = None,
    sample_weight: str | None = None,
) -> Adapter:
    """A loader as ``fit``, ``evaluate`` and ``predict`` take it, with Keras on the jax backend.

    An epoch of Keras is a loop over the loader: the k-th is the loader's epoch k, with a new order.
    For ``validation_data`` give a loader with ``reshuffle=False``, or one that does not shuffle.
    An endless loader needs ``steps_per_epoch``, and the next epoch goes on where the last one
    ended.  ``get_state`` and ``set_state`` are those of the loader's iterator.

    >>> import os
    >>> os.environ["KERAS_BACKEND"] = "jax"
    >>> import numpy as np, loaderx as lx
    >>> import keras
    >>> ds = lx.Dataset.from_arrays(pixels=np.zeros((8, 3), np.float32), label=np.arange(8) % 2)
    >>> loader = lx.DataLoader(ds.shuffle(seed=0).batch(4))
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    >>> model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    >>> batches = lx.compat.keras.adapt(loader, x="pixels", y="label")
    >>> len(model.fit(batches, epochs=3, verbose=0).history["loss"])
    3

    Args:
        loader: its batches are ``x``, ``(x, y)`` or ``(x, y, sample_weight)``; or dicts, whose
            leaves the other arguments name.
        x: the leaf that is the input; several names are a dict of inputs.
        y: the leaf that is the target.
        sample_weight: the leaf with the weights, such as the ``mask`` of ``pad_remainder``.
    """
    if not isinstance(loader, DataLoader):
        raise ArgumentTypeError(
            f"`adapt` takes a loaderx.DataLoader, got {type(loader).__name__}: write "
            "adapt(DataLoader(...))."
        )
    names = (x, y, sample_weight)
    if (x is None and y is not None) or (y is None and sample_weight is not None):
        raise ArgumentError('`y` needs `x`, and `sample_weight` both: name them, as in x="image".')
    base = keras_module("keras.src.trainers.data_adapters.data_adapter").DataAdapter
    adapted: Adapter = type("Adapter", (Adapter, base), {})(loader, names)
    return adapted


def backup(
    adapted: Adapter, folder: str | os.PathLike[str], *, save_freq: int | None = None
) -> Backup:
    """A callback of ``fit`` that saves the weights and where the data is, together.

    After a kill the same program goes on behind the last batch that was saved, also in the middle
    of an epoch: ``backup.restore(model)`` loads both, and returns the epoch to begin with (0 if
    nothing was saved).  The epoch that was broken off ends where it would have, so put this
    callback before others that stop the training.

    >>> from pathlib import Path
    >>> import loaderx as lx
    >>> def train(model, loader, folder):
    ...     batches = lx.compat.keras.adapt(loader)
    ...     saves = lx.compat.keras.backup(batches, folder, save_freq=500)
    ...     first = saves.restore(model)
    ...     model.fit(batches, initial_epoch=first, epochs=10, callbacks=[saves])

    Args:
        adapted: what `adapt` returned for the training data.
        folder: for this run alone; remove it to begin again.
        save_freq: steps between two saves within an epoch.  Every epoch is saved at its end.
    """
    if not isinstance(adapted, Adapter):
        raise ArgumentTypeError(
            f"`backup` takes what `adapt` returned, got {type(adapted).__name__}: write "
            "batches = adapt(loader), and give `batches` to both `fit` and `backup`."
        )
    if save_freq is not None:
        save_freq = check_int("save_freq", save_freq, least=1)
    base = keras_module("keras").callbacks.Callback
    made: Backup = type("Backup", (Backup, base), {})(adapted, Path(folder), save_freq)
    return made


class Adapter:
    """What `adapt` returns; also a ``DataAdapter`` of Keras."""

    def __init__(self, loader: DataLoader[Any], names: Sequence[Any]) -> None:
        self._loader, self._names = loader, names
        try:
            self._length: int | None = len(loader)
        except TypeError:  # endless, or a stream whose length is not known
            self._length = None
        self._batches = iter(loader)  # where the next batch is
        self._is_begun = False  # whether batches were taken of this pass
        self._before: dict[str, Any] | None = None  # the state when an epoch began
        self._was_asked = False  # for its length, as Keras does when it resets
        self.taken = 0
        self._states: deque[dict[str, Any]] = deque(maxlen=2)  # after the last batches

    def get_state(self, ahead: int = 0) -> dict[str, Any]:
        """The position, as the loader's iterators have it: ``ahead`` batches before the next."""
        return self._states[-1 - ahead] if ahead else self._batches.get_state()

    def set_state(self, state: dict[str, Any], *, strict: bool = True) -> None:
        """Goes on from a position; ``strict`` is that of the loader's iterators."""
        self._batches.set_state(state, strict=strict)
        self._is_begun = False

    # What Keras calls -------------------------------------------------------------------------

    @property
    def num_batches(self) -> int | None:
        """The batches of an epoch; None if that is not known."""
        self._was_asked = True
        return self._length

    def on_epoch_begin(self) -> None:
        """Notes where the epoch begins."""
        self.on_epoch_end()  # which a reset of older versions leaves out
        self._before, self._was_asked = self.get_state(), False

    def on_epoch_end(self) -> None:
        """Goes back to where the epoch began, if this is a reset and not an end."""
        if self._was_asked and self._before is not None:
            self.set_state(self._before)
        self._before = None

    def get_jax_iterator(self) -> Iterator[Any]:
        """The batches of one pass over the loader, as Keras takes them."""
        if self._is_begun and self._length is not None:
            self._next_pass()
        for batch in self._batches:
            self._is_begun = True
            if self._length is not None and not len(self._batches):
                self._next_pass()
            self.taken += 1
            self._states.append(self._batches.get_state())
            yield self._parts(batch)
        self._next_pass()

    def _next_pass(self) -> None:
        self._batches.close()
        self._batches, self._is_begun = iter(self._loader), False

    def _parts(self, batch: Any) -> Any:
        x, y, weight = self._names
        if x is None:
            return tuple(batch) if isinstance(batch, list) else batch
        try:
            inputs = batch[x] if isinstance(x, str) else {name: batch[name] for name in x}
            return (inputs, *(batch[name] for name in (y, weight) if name is not None))
        except (KeyError, TypeError) as error:
            have = list(batch) if isinstance(batch, dict) else type(batch).__name__
            raise ArgumentError(
                f"`adapt` was told to take the leaves {self._names}, and a batch has {have}."
            ) from error


class Backup:
    """What `backup` returns; also a ``Callback`` of Keras."""

    params: dict[str, Any]
    model: Any

    def __init__(self, adapted: Adapter, folder: Path, save_freq: int | None) -> None:
        super().__init__()
        self._data, self._folder, self._every = adapted, folder, save_freq
        self._epoch = 0
        self._done = 0  # batches of this epoch that were trained
        self._restored = 0  # those of them that were trained before the run was killed
        self._trained = 0  # as `Adapter.taken` counts

    def restore(self, model: Any, *, strict: bool = True) -> int:
        """Loads what was saved into a model, which must be built; returns the epoch.

        ``strict`` is that of the loader's ``set_state``.
        """
        if not model.built or getattr(model, "optimizer", None) is None:
            raise ArgumentError(
                "`restore` loads weights into a model that is built and compiled: begin it with a "
                "keras.Input, or call model.build(shape), and call model.compile(...) before."
            )
        if not (self._folder / "state.json").exists():
            return 0
        kept = json.loads((self._folder / "state.json").read_text())
        self._data.set_state(kept["data"], strict=strict)  # if it fails, the model is as it was
        model.optimizer.build(model.trainable_variables)
        model.load_weights(self._folder / kept["weights"])
        self._restored = self._done = kept["batch"]
        return int(kept["epoch"])

    def on_train_begin(self, logs: object = None) -> None:
        """Counts from here: what Keras has looked at was not trained."""
        self._trained, self._done = self._data.taken, self._restored

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        """Notes the number of the epoch."""
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Saves now and then, and ends an epoch that was broken off."""
        before, self._done = self._done, self._restored + batch + 1
        self._trained += self._done - before
        if self._is_whole(unknown=False):  # `on_epoch_end` saves
            self.model.stop_training |= self._restored > 0
        elif self._every and before // self._every < self._done // self._every:
            self._save()

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        """Saves the end of an epoch as the beginning of the next, unless it was broken off."""
        if self._is_whole(unknown=True):
            if self._restored:
                self.model.stop_training = False
            self._epoch, self._done, self._restored = epoch + 1, 0, 0
        self._save()

    def _is_whole(self, *, unknown: bool) -> bool:
        """Whether all batches of the epoch are trained; ``unknown`` if Keras has no number."""
        steps = self.params["steps"]
        return unknown if steps is None else self._done >= steps

    def _save(self) -> None:
        """Writes the weights, then what names them: a kill leaves one save or the other."""
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"epoch{self._epoch}-batch{self._done}.weights.h5"
        self.model.save_weights(self._folder / name, overwrite=True)
        # On accelerators Keras takes a batch before it trains on the last one.
        data = self._data.get_state(max(self._data.taken - self._trained, 0))
        kept = {"epoch": self._epoch, "batch": self._done, "weights": name, "data": data}
        (self._folder / "state.part").write_text(json.dumps(kept))
        (self._folder / "state.part").replace(self._folder / "state.json")
        for old in self._folder.glob("epoch*.weights.h5"):
            if old.name != name:
                old.unlink()


def keras_module(name: str) -> ModuleType:
    """A module of Keras, if Keras runs on jax."""
    try:
        backend = import_module("keras").backend.backend()
    except ImportError as error:
        backend = f"an import that fails ({error})"
    if backend != "jax":
        raise MissingPackageError(
            f"Keras must run on jax, and there is {backend}: pip install 'loaderx-jax[keras]', and "
            "set KERAS_BACKEND=jax before keras is imported."
        )
    return import_module(name)
