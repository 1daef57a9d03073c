"""Random augmentation on the device: the host ships bytes and keys, the step does the rest.

    python examples/augment_on_device.py [--epochs 10]

`random_keys()` gives every record key data of its own, which depends on the seed, the epoch and the
record, and on nothing else.  `jax.random.wrap_key_data` makes keys of them inside the step.  So a
record is augmented in the same way whatever the batch size, the number of hosts and the engine.
"""

from __future__ import annotations

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from loaderx import DataLoader, Dataset
from loaderx.demo import DIGITS

OPTIMIZER = optax.adam(2e-3)


def augment(key: Any, image: Any) -> Any:
    """One image of bytes as floats: moved by up to one pixel, with some noise."""
    where, noise = jax.random.split(key)
    corner = jax.random.randint(where, (2,), 0, 3)
    moved = jax.lax.dynamic_slice(jnp.pad(image, 1), corner, image.shape)
    return moved.astype(jnp.float32) / 16 + 0.05 * jax.random.normal(noise, image.shape)


@jax.jit
def augment_batch(batch: Any) -> Any:
    """All images of a batch, each with its own key."""
    return jax.vmap(augment)(jax.random.wrap_key_data(batch["key"]), batch["image"])


def new_weights(seed: int) -> Any:
    """A network of one hidden layer."""
    one, two = jax.random.split(jax.random.key(seed))
    return {
        "hidden": jax.random.normal(one, (64, 128)) / 8,
        "out": jax.random.normal(two, (128, 10)) / 11,
    }


def logits(weights: Any, image: Any) -> Any:
    """For a batch of images of floats."""
    return jax.nn.relu(image.reshape(len(image), -1) @ weights["hidden"]) @ weights["out"]


@jax.jit
def train_step(weights: Any, moments: Any, batch: Any) -> tuple[Any, Any]:
    """Augments, then takes one step of the optimizer."""

    def loss_of(weights: Any) -> Any:
        found = logits(weights, augment_batch(batch))
        return optax.softmax_cross_entropy_with_integer_labels(found, batch["label"]).mean()

    updates, moments = OPTIMIZER.update(jax.grad(loss_of)(weights), moments, weights)
    return optax.apply_updates(weights, updates), moments


def main(arguments: list[str] | None = None) -> float:
    """Trains, and returns the accuracy on the test records."""
    parser = argparse.ArgumentParser(description="Augments digits on the device.")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args(arguments)

    train, test = Dataset.open(DIGITS).split(0.8, 0.2, seed=0)
    keyed = train.shuffle(seed=0).random_keys(seed=1)
    weights = new_weights(0)
    moments = OPTIMIZER.init(weights)
    batches = keyed.batch(64, drop_remainder=True).repeat(options.epochs)
    with DataLoader[Any](batches, sharding=jax.devices()[0]) as loader:
        for batch in loader:
            weights, moments = train_step(weights, moments, batch)

    images = test.batch(len(test))[0]
    guesses = logits(weights, images["image"].astype(np.float32) / 16).argmax(-1)
    accuracy = float((guesses == images["label"]).mean())
    print(f"test accuracy after {options.epochs} epochs: {accuracy:.1%}")

    # The same records in batches of another size, on two hosts, are augmented in the same way.
    whole = augment_batch(next(iter(DataLoader[Any](keyed.repeat().batch(32)))))
    halves = [
        augment_batch(next(iter(DataLoader[Any](keyed.repeat().batch(16), shard=(host, 2)))))
        for host in range(2)
    ]
    same = np.array_equal(whole[:16], np.concatenate(halves))
    print(f"augmented alike in batches of 32 and on two hosts: {'yes' if same else 'NO'}")
    return accuracy


if __name__ == "__main__":
    main()
