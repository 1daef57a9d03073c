"""A plain MLP in JAX, trained with SGD on images in MNIST's format.

    python examples/mlp.py                          # the digits that come with loaderx
    python examples/mlp.py --data DIR               # train-images-idx3-ubyte[.gz] and so on

Debian's package dataset-fashion-mnist puts such files into /usr/share/datasets/fashion-mnist.
The network is the one of JAX's own introduction: 784-512-512-10, pixels from 0 to 255 as they are,
SGD with a rate of 0.01, batches of 128, 8 epochs.  Images travel as bytes; the compiled step makes
floats of them, on the device.  It is called with NumPy batches: they are so small (100 kB) that the
call brings them to the device in no time.  For larger ones give the loader ``sharding=``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp

import loaderx as lx
from loaderx import DataLoader, Dataset
from loaderx.demo import DIGITS

HIDDEN = (512, 512)
CLASSES = 10

# Data ---------------------------------------------------------------------------------------------


def read(folder: Path | None) -> tuple[Dataset[Any], Dataset[Any]]:
    """Records {"image", "label"} to train on, and others to test on."""
    if folder is None:
        train, test = Dataset.open(DIGITS).split(0.8, 0.2, seed=0)
        return train, test
    return tuple(
        Dataset.from_arrays(
            image=lx.sources.open_idx(folder / f"{part}-images-idx3-ubyte"),
            label=lx.sources.open_idx(folder / f"{part}-labels-idx1-ubyte"),
        )
        for part in ("train", "t10k")
    )


# Model --------------------------------------------------------------------------------------------


def new_weights(sizes: list[int], seed: int = 0) -> list[tuple[Any, Any]]:
    """Small random weights and biases, one pair per layer."""
    keys = jax.random.split(jax.random.key(seed), len(sizes) - 1)
    layers = []
    for key, wide, narrow in zip(keys, sizes, sizes[1:], strict=False):
        one, two = jax.random.split(key)
        weight = 0.01 * jax.random.normal(one, (wide, narrow))
        layers.append((weight, 0.01 * jax.random.normal(two, (narrow,))))
    return layers


def predict(weights: Any, image: Any) -> Any:
    """The logarithm of each class's probability, for a batch of images of bytes."""
    x = image.reshape(len(image), -1).astype(jnp.float32)
    for weight, bias in weights[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    weight, bias = weights[-1]
    return jax.nn.log_softmax(x @ weight + bias)


@jax.jit
def train_step(weights: Any, batch: Any, rate: float) -> Any:
    """The weights after one step of SGD."""

    def loss_of(weights: Any) -> Any:
        targets = jax.nn.one_hot(batch["label"], CLASSES)
        return -jnp.mean(predict(weights, batch["image"]) * targets)

    gradients = jax.grad(loss_of)(weights)
    return jax.tree.map(lambda w, g: w - rate * g, weights, gradients)


@jax.jit
def count_correct(weights: Any, batch: Any) -> Any:
    """How many of the records that are no padding the model gets right."""
    right = predict(weights, batch["image"]).argmax(-1) == batch["label"]
    return jnp.sum(right & batch["mask"])


def accuracy(weights: Any, test: Dataset[Any]) -> float:
    """The share of test records that the model gets right; padding keeps one compiled shape."""
    batches = test.batch(1000, pad_remainder=True)
    with DataLoader[Any](batches) as loader:
        return sum(int(count_correct(weights, b)) for b in loader) / len(test)


# Training -----------------------------------------------------------------------------------------


def train_epoch(weights: Any, batches: Iterable[Any], rate: float) -> Any:
    """The weights after one epoch; any iterable of batches will do."""
    for batch in batches:
        weights = train_step(weights, batch, rate)
    return jax.block_until_ready(weights)


def first_weights(train: Dataset[Any], seed: int = 0) -> Any:
    """Untrained weights for images of the dataset's size."""
    pixels = train.element_spec["image"].shape
    return new_weights([pixels[0] * pixels[1], *HIDDEN, CLASSES], seed)


def main(arguments: list[str] | None = None) -> float:
    """Trains, and returns the accuracy on the test records."""
    parser = argparse.ArgumentParser(description="Trains a plain MLP on MNIST-format images.")
    parser.add_argument("--data", type=Path, help="a folder of IDX files, packed or not")
    parser.add_argument("--epochs", type=int, help="8 by default, 30 for the few digits")
    parser.add_argument("--rate", type=float, help="of learning: 0.01, or 0.1 for the few digits")
    parser.add_argument("--batch-size", type=int, default=128)
    options = parser.parse_args(arguments)

    train, test = read(options.data)
    epochs, rate = (8, 0.01) if options.data else (30, 0.1)
    epochs, rate = options.epochs or epochs, options.rate or rate
    batches = train.shuffle(seed=0).batch(options.batch_size, drop_remainder=True)
    weights = first_weights(train)
    score = 0.0
    with DataLoader[Any](batches, sharding=jax.devices()[0]) as loader:
        for epoch in range(epochs):
            begun, before = perf_counter(), loader.stats().waited_s
            weights = train_epoch(weights, loader, rate)
            seconds, waited = perf_counter() - begun, loader.stats().waited_s - before
            score = accuracy(weights, test)
            print(
                f"epoch {epoch + 1}: {seconds:.2f} s, {waited / seconds:.1%} of it in the loader "
                f"(while the step before may still run), test accuracy {score:.1%}",
                flush=True,
            )
    return score


if __name__ == "__main__":
    main()
