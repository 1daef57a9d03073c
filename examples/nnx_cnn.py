"""A convolutional network with Flax NNX: metrics, a training and a validation loader.

    python examples/nnx_cnn.py [--data DIR] [--epochs 5]

Without --data it learns the digits that come with loaderx; DIR holds IDX files, as for mlp.py.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import loaderx as lx
from loaderx import DataLoader, Dataset
from loaderx.demo import DIGITS


class CNN(nnx.Module):
    """Two convolutions and two dense layers."""

    def __init__(self, side: int, brightest: float, *, rngs: nnx.Rngs) -> None:
        self.brightest = brightest
        self.conv1 = nnx.Conv(1, 32, (3, 3), rngs=rngs)
        self.conv2 = nnx.Conv(32, 64, (3, 3), rngs=rngs)
        self.pool = partial(nnx.avg_pool, window_shape=(2, 2), strides=(2, 2))
        self.dense = nnx.Linear((side // 4) ** 2 * 64, 128, rngs=rngs)
        self.out = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, image: Any) -> Any:
        """Logits for a batch of images of bytes."""
        x = image[..., None].astype(jnp.float32) / self.brightest
        x = self.pool(nnx.relu(self.conv1(x)))
        x = self.pool(nnx.relu(self.conv2(x)))
        return self.out(nnx.relu(self.dense(x.reshape(len(x), -1))))


def loss_of(model: CNN, batch: Any) -> tuple[Any, Any]:
    """The loss of a batch, and the logits."""
    logits = model(batch["image"])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
    mask = batch.get("mask", jnp.ones_like(losses))
    return (losses * mask).sum() / mask.sum(), logits


@nnx.jit
def train_step(model: CNN, optimizer: Any, metrics: Any, batch: Any) -> None:
    """One step of the optimizer."""
    (loss, logits), gradients = nnx.value_and_grad(loss_of, has_aux=True)(model, batch)
    metrics.update(loss=loss, logits=logits, labels=batch["label"])
    optimizer.update(model, gradients)


@nnx.jit
def valid_step(model: CNN, batch: Any) -> tuple[Any, Any]:
    """The number of records in a padded batch, and how many of them are right."""
    logits = model(batch["image"])
    right = (logits.argmax(-1) == batch["label"]) & batch["mask"]
    return batch["mask"].sum(), right.sum()


def read(folder: Path | None) -> tuple[Dataset[Any], Dataset[Any]]:
    """Records to train on, and others to validate with."""
    if folder is None:
        records = Dataset.open(DIGITS)
    else:
        records = Dataset.from_arrays(
            image=lx.sources.open_idx(folder / "train-images-idx3-ubyte"),
            label=lx.sources.open_idx(folder / "train-labels-idx1-ubyte"),
            # The files have bytes, and Flax's Accuracy takes labels of int32 alone.
        ).map(lambda batch: {**batch, "label": batch["label"].astype("int32")}, batched=True)
    train, valid = records.split(0.8, 0.2, seed=0)
    return train, valid


def main(arguments: list[str] | None = None) -> float:
    """Trains, and returns the accuracy on the validation records."""
    parser = argparse.ArgumentParser(description="Trains a small CNN with Flax NNX.")
    parser.add_argument("--data", type=Path, help="a folder of IDX files, packed or not")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    options = parser.parse_args(arguments)

    train, valid = read(options.data)
    train = train.shuffle(seed=0).batch(options.batch_size, drop_remainder=True)
    valid = valid.batch(options.batch_size, pad_remainder=True)  # one shape, one compilation

    side = train.element_spec["image"].shape[1]
    model = CNN(side, 255.0 if options.data else 16.0, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(2e-3), wrt=nnx.Param)
    metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
    device = jax.devices()[0]
    accuracy = 0.0
    with (
        DataLoader[Any](train, sharding=device) as train_loader,
        DataLoader[Any](valid, sharding=device) as valid_loader,
    ):
        steps = len(train_loader)
        log_every = max(1, steps // 4)
        for epoch in range(options.epochs):
            for step, batch in enumerate(train_loader, 1):
                train_step(model, optimizer, metrics, batch)
                if step % log_every == 0:  # seldom: reading the loss waits for the device
                    loss = float(metrics.compute()["loss"])
                    print(f"epoch {epoch + 1}, step {step} of {steps}: loss {loss:.3f}", flush=True)
            seen = {name: float(value) for name, value in metrics.compute().items()}
            metrics.reset()
            counts = [valid_step(model, batch) for batch in valid_loader]
            accuracy = sum(int(right) for _, right in counts) / sum(int(n) for n, _ in counts)
            print(
                f"epoch {epoch + 1}: loss {seen['loss']:.3f}, accuracy {seen['accuracy']:.1%}, "
                f"validation accuracy {accuracy:.1%}",
                flush=True,
            )
    return accuracy


if __name__ == "__main__":
    main()
