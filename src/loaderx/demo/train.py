"""Trains a network, stops in the middle of an epoch, goes on, and checks that nothing was lost.

Two trainings see the same stream of batches.  The first is stopped half-way: weights, optimizer and
data position go to files, every object is dropped, new ones are made and restored.  The second runs
through.  Each keeps a hash of every batch, and in the end hashes and weights are compared.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from tqdm import tqdm

from loaderx import BatchGenerator, DataLoader, Dataset, LoaderIterator, __version__
from loaderx.demo import DIGITS
from loaderx.loader.stats import Stats
from loaderx.tree import Array

Batch: TypeAlias = dict[str, Array]

BATCH_SIZE = 64
EPOCHS = 15
GOOD_ACCURACY = 0.97


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of the demo.  Times are those of the training that was not stopped.

    Attributes:
        accuracy: of the stopped and restored model, on digits that it was not trained on.
        same_stream: whether both trainings were given the same batches, byte for byte.
        same_weights: whether both ended with the same weights, bit for bit.
        waited_s: time that the training waited for data.
        seconds: time that it took.
    """

    accuracy: float
    same_stream: bool
    same_weights: bool
    waited_s: float
    seconds: float

    def problems(self) -> list[str]:
        """The problems found, as plain sentences.

        Weights are left out: not every accelerator adds up numbers in the same order twice.
        """
        found = []
        if self.accuracy < GOOD_ACCURACY:
            found.append(f"the accuracy is {self.accuracy:.1%}, below {GOOD_ACCURACY:.0%}.")
        if not self.same_stream:
            found.append("the batches after the restart are not those of the run without a stop.")
        return found


# Data ---------------------------------------------------------------------------------------------


def split_digits() -> tuple[Dataset[Batch], Dataset[Batch]]:
    """Records to train on, and others to test on."""
    train, test = Dataset.open(DIGITS).split(0.8, 0.2, seed=0)
    return train, test


def training_data(epochs: int) -> Dataset[Batch]:
    """Batches in a new order, and with new random shifts, in every epoch."""
    return (
        split_digits()[0]
        .shuffle(seed=0)
        .batch(BATCH_SIZE, drop_remainder=True)
        .random_map(shift)
        .map(normalize)
        .repeat(epochs)
    )


def held_out_data() -> Dataset[Batch]:
    """Every test record once.  The last batch is filled up, so that `jit` compiles once."""
    return split_digits()[1].batch(BATCH_SIZE, pad_remainder=True).map(normalize)


def shift(batch: Batch, rng: BatchGenerator) -> Batch:
    """Moves each image sideways, by one pixel at most."""
    image = batch["image"]
    padded = np.pad(image, ((0, 0), (0, 0), (1, 1)))
    columns = rng.integers(0, 3)[:, None] + np.arange(image.shape[2])  # one draw per record
    return {**batch, "image": np.take_along_axis(padded, columns[:, None, :], axis=2)}


def normalize(batch: Batch) -> Batch:
    """Pixels as floats from 0 to 1, with the channel axis that a convolution wants."""
    return {**batch, "image": batch["image"][..., None].astype(np.float32) / 16}


# Model --------------------------------------------------------------------------------------------


# One object for every learner: with a new one, the training step would be compiled again.
ADAM = optax.adam(3e-3)


def _flatten(x: jax.Array) -> jax.Array:  # for the same reason not a lambda
    return x.reshape(len(x), -1)


@dataclass(frozen=True, slots=True)
class Learner:
    """A model and its optimizer."""

    model: nnx.Sequential
    optimizer: nnx.Optimizer

    @property
    def state(self) -> nnx.State:
        """Every array of the two."""
        return nnx.state((self.model, self.optimizer))


def new_learner() -> Learner:
    """A small convolutional network with its first, untrained weights."""
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(
        nnx.Conv(1, 32, (3, 3), rngs=rngs),
        nnx.relu,
        nnx.Conv(32, 32, (3, 3), strides=2, rngs=rngs),
        nnx.relu,
        _flatten,
        nnx.Linear(4 * 4 * 32, 64, rngs=rngs),
        nnx.relu,
        nnx.Linear(64, 10, rngs=rngs),
    )
    return Learner(model, nnx.Optimizer(model, ADAM, wrt=nnx.Param))


def _train_step(model: nnx.Sequential, optimizer: nnx.Optimizer, batch: Batch) -> jax.Array:
    def loss_of(model: nnx.Sequential) -> jax.Array:
        logits = model(batch["image"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss


def _count_correct(model: nnx.Sequential, batch: Batch) -> jax.Array:
    right = model(batch["image"]).argmax(-1) == batch["label"]
    return jnp.sum(right & batch["mask"])  # padding does not count


train_step = nnx.jit(_train_step)
count_correct = nnx.jit(_count_correct)


def accuracy_of(model: nnx.Sequential) -> float:
    """The share of test records that the model gets right."""
    with DataLoader[Batch](held_out_data()) as loader:
        correct = sum(int(count_correct(model, batch)) for batch in loader)
    return correct / len(split_digits()[1])


def same_weights(a: Learner, b: Learner) -> bool:
    """Whether models and optimizers are equal, bit for bit."""
    pairs = zip(jax.tree.leaves(a.state), jax.tree.leaves(b.state), strict=True)
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)


# Training -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Terminal:
    """The output for the user, and the check whether they want to stop."""

    quiet: bool
    check: Callable[[], None]

    def say(self, text: str) -> None:
        if not self.quiet:
            print(text, flush=True)

    def progress(self, part: int, stream: LoaderIterator[Batch], total: int) -> tqdm:
        """A bar on stderr that starts where the stream stands."""
        return tqdm(
            desc=f"  part {part} of 3",
            total=total,
            initial=stream.step,
            unit=" batches",
            leave=False,
            disable=True if self.quiet else None,  # None: silent where stderr is no terminal
        )


def train_on(
    stream: LoaderIterator[Batch], until: int, learner: Learner, bar: tqdm, terminal: Terminal
) -> list[bytes]:
    """Trains up to a step of the stream, and returns a hash of every batch on the way."""
    hashes = []
    for batch in islice(stream, until - stream.step):
        terminal.check()
        hashes.append(hash_of(batch))
        loss = train_step(learner.model, learner.optimizer, batch)
        # Reading the loss waits for the step, so that the measured times are those of real work.
        bar.set_postfix(loss=f"{float(loss):.3f}", refresh=False)
        bar.update()
    return hashes


def hash_of(batch: Batch) -> bytes:
    """A fingerprint of the names, types, shapes and bytes of a batch."""
    digest = hashlib.blake2s()
    for name, leaf in sorted(batch.items()):
        digest.update(f"{name} {leaf.dtype} {leaf.shape} ".encode())
        digest.update(leaf.tobytes())
    return digest.digest()


def save(folder: Path, learner: Learner, stream: LoaderIterator[Batch]) -> None:
    """Writes weights, optimizer and data position."""
    np.savez(folder / "learner.npz", *jax.tree.leaves(learner.state))
    (folder / "position.json").write_text(json.dumps(stream.get_state()))


def restore(folder: Path, learner: Learner, stream: LoaderIterator[Batch]) -> None:
    """Restores what `save` wrote into new objects."""
    with np.load(folder / "learner.npz") as saved:
        leaves = [jnp.asarray(saved[name]) for name in saved.files]
    state = jax.tree.unflatten(jax.tree.structure(learner.state), leaves)
    nnx.update((learner.model, learner.optimizer), state)
    stream.set_state(json.loads((folder / "position.json").read_text()))


def first_half(folder: Path, epochs: int, stop: int, terminal: Terminal) -> list[bytes]:
    """Trains from the beginning up to ``stop`` and saves; nothing else is kept."""
    learner = new_learner()
    with DataLoader[Batch](training_data(epochs)) as loader:
        stream = iter(loader)
        with terminal.progress(1, stream, len(loader)) as bar:
            hashes = train_on(stream, stop, learner, bar, terminal)
        save(folder, learner, stream)
    return hashes


def second_half(folder: Path, epochs: int, terminal: Terminal) -> tuple[Learner, list[bytes]]:
    """Builds everything again, restores it, and trains to the end."""
    learner = new_learner()
    with DataLoader[Batch](training_data(epochs)) as loader:
        stream = iter(loader)
        restore(folder, learner, stream)
        with terminal.progress(2, stream, len(loader)) as bar:
            hashes = train_on(stream, len(loader), learner, bar, terminal)
    return learner, hashes


def without_stop(epochs: int, terminal: Terminal) -> tuple[Learner, list[bytes], Stats]:
    """Trains from the beginning to the end."""
    learner = new_learner()
    with DataLoader[Batch](training_data(epochs)) as loader:
        stream = iter(loader)
        with terminal.progress(3, stream, len(loader)) as bar:
            hashes = train_on(stream, len(loader), learner, bar, terminal)
        return learner, hashes, loader.stats()


# The demo -----------------------------------------------------------------------------------------


def train(
    epochs: int = EPOCHS, *, quiet: bool = False, check: Callable[[], None] = lambda: None
) -> Outcome:
    """Runs the whole demo; shows nothing if ``quiet``.

    ``check`` is called often, between two steps; an exception that it raises ends the demo.
    """
    terminal = Terminal(quiet, check)
    stop = stop_step(epochs)
    terminal.say(introduction(epochs, stop))
    with tempfile.TemporaryDirectory(prefix="loaderx-demo-") as name:
        folder = Path(name)
        before = first_half(folder, epochs, stop, terminal)
        learner, after = second_half(folder, epochs, terminal)
    reference, hashes, stats = without_stop(epochs, terminal)
    outcome = Outcome(
        accuracy=accuracy_of(learner.model),
        same_stream=before + after == hashes,
        same_weights=same_weights(learner, reference),
        waited_s=stats.waited_s,
        seconds=stats.seconds,
    )
    terminal.check()
    terminal.say(report(outcome, len(hashes), stats))
    return outcome


def stop_step(epochs: int) -> int:
    """About half-way, and never where one epoch ends and the next begins."""
    total = len(training_data(epochs))
    per_epoch = total // epochs
    half = total // 2
    return half if half % per_epoch else half + per_epoch // 2


def introduction(epochs: int, stop: int) -> str:
    """The text that is shown first."""
    train, test = (len(part) for part in split_digits())
    total = len(training_data(epochs))
    return f"""\
loaderx {__version__}: a small Flax network learns to read {train + test:,} handwritten digits.
{train:,} to learn from, {test} to test with; {epochs} epochs, {total} batches of {BATCH_SIZE}.

  1. Train up to batch {stop}, in the middle of an epoch. Save. Throw everything away.
  2. Build everything again, restore, and train to the end.
  3. Train once more without a stop, and compare.
"""


def report(outcome: Outcome, batches: int, stats: Stats) -> str:
    """The results, as text."""
    share = outcome.waited_s / outcome.seconds
    return f"""\
  test accuracy     {outcome.accuracy:.1%}
  same batches      {_yes(outcome.same_stream)}, {batches} compared byte for byte
  same weights      {_yes(outcome.same_weights)}, compared bit for bit
  waited for data   {outcome.waited_s:.2f} s of {outcome.seconds:.2f} s ({share:.1%})
  engine            {stats.engine}: {stats.reason}"""


def _yes(value: bool) -> str:
    return "yes" if value else "NO"
