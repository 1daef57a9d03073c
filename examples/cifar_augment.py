"""Augmentation on the host or on the device: the same images, the same curves.

    python examples/cifar_augment.py [--on host | device | both | none] [--epochs 24]

Trains a small convolutional network on few images of CIFAR's size: shapes of ten kinds, drawn here,
so that nothing has to be downloaded.  Each training image is moved by up to 4 pixels, mirrored or
not, and loses a square of 8 × 8.  `change` says so in JAX, for one record.  With --on host, XLA
applies it to batches on the CPU; with --on device, the training step does, and gets bytes and keys.
A record's key is the same in both cases, and so is what becomes of the record: --on both trains
twice, and says how far the two differ.  Test images are never augmented.

After 24 epochs 87 % of the test images are recognised; 65 % with --on none, which learns its 1,024
images by heart.  The task is made for this: a shape means the same anywhere, and mirrored.
"""

from __future__ import annotations

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from loaderx import DataLoader, Dataset
from loaderx.jax import augment
from loaderx.jax.image import normalize, random_cutout, random_pad_and_crop

OPTIMIZER = optax.adam(2e-3)
SIDE = 32

SHAPES = [  # in coordinates from -1 to 1; all are their own mirror images
    lambda y, x: x**2 + y**2 < 1,
    lambda y, x: abs(x**2 + y**2 - 0.7) < 0.3,
    lambda y, x: np.maximum(abs(x), abs(y)) < 0.85,
    lambda y, x: abs(np.maximum(abs(x), abs(y)) - 0.7) < 0.2,
    lambda y, x: abs(x) + abs(y) < 1.1,
    lambda y, x: (np.minimum(abs(x), abs(y)) < 0.3) & (np.maximum(abs(x), abs(y)) < 1),
    lambda y, x: (abs(abs(x) - abs(y)) < 0.35) & (np.maximum(abs(x), abs(y)) < 0.85),
    lambda y, x: (np.maximum(abs(x), abs(y)) < 0.9) & (np.cos(9 * y) > 0),
    lambda y, x: (np.maximum(abs(x), abs(y)) < 0.9) & (np.cos(9 * x) > 0),
    lambda y, x: (np.maximum(abs(x), abs(y)) < 0.9) & (np.cos(6 * x) * np.cos(6 * y) > 0),
]


def draw(count: int, seed: int) -> Dataset[Any]:
    """Images of shapes, of any colour and size, anywhere on a noisy ground."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, len(SHAPES), count).astype(np.int32)
    image = rng.normal(0, 12, (count, SIDE, SIDE, 3)) + rng.uniform(40, 215, (count, 1, 1, 3))
    for number, kind in enumerate(label):
        radius = rng.uniform(5, 10)
        centre = rng.uniform(radius, SIDE - radius, (2, 1, 1))
        y, x = (np.mgrid[:SIDE, :SIDE] - centre) / radius
        image[number][SHAPES[kind](y, x)] += rng.choice([-90, 90])
    return Dataset.from_arrays(image=image.clip(0, 255).astype(np.uint8), label=label)


def change(key: Any, record: Any) -> Any:
    """One training record, augmented.  Bytes stay bytes."""
    for_crop, for_side, for_hole = jax.random.split(key, 3)
    image = random_pad_and_crop(for_crop, record["image"], 4, mode="reflect")
    image = jnp.where(jax.random.bernoulli(for_side), image[:, ::-1], image)
    return {**record, "image": random_cutout(for_hole, image, 8, value=128)}


AUGMENTED = augment(change)


def batches(records: Dataset[Any], size: int, *, train: bool, on: str) -> Dataset[Any]:
    """The chain to train with, and the one to test with: only the former is augmented."""
    if not train:
        return records.batch(size, pad_remainder=True)
    shuffled = records.shuffle(seed=0).batch(size, drop_remainder=True)
    if on == "host":
        return shuffled.random_map(AUGMENTED, seed=1)
    return shuffled.random_keys(seed=1) if on == "device" else shuffled


def new_weights(seed: int) -> Any:
    """Three convolutions and a linear layer."""
    sizes = {"one": (3, 3, 3, 16), "two": (3, 3, 16, 32), "three": (3, 3, 32, 64), "out": (64, 10)}
    keys = jax.random.split(jax.random.key(seed), len(sizes))
    return {
        name: jax.random.normal(key, size) * np.sqrt(2 / np.prod(size[:-1]))
        for key, (name, size) in zip(keys, sizes.items(), strict=True)
    }


def logits(weights: Any, image: Any) -> Any:
    """For a batch of images of bytes."""
    x = normalize(image, 0.5, 0.25)
    for name in ("one", "two", "three"):
        dimensions = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(
            x, weights[name], (2, 2), "SAME", dimension_numbers=dimensions
        )
        x = jax.nn.relu(x)
    return x.max((1, 2)) @ weights["out"]


@jax.jit
def train_step(weights: Any, moments: Any, batch: Any) -> tuple[Any, Any, Any]:
    """One step of the optimizer; it augments the batch if the keys came with it."""
    if "key" in batch:
        batch = AUGMENTED(batch)

    def loss_of(weights: Any) -> Any:
        found = logits(weights, batch["image"])
        return optax.softmax_cross_entropy_with_integer_labels(found, batch["label"]).mean()

    loss, gradients = jax.value_and_grad(loss_of)(weights)
    updates, moments = OPTIMIZER.update(gradients, moments, weights)
    return optax.apply_updates(weights, updates), moments, loss


@jax.jit
def count_right(weights: Any, batch: Any) -> Any:
    """How many records of a padded batch are recognised."""
    return ((logits(weights, batch["image"]).argmax(-1) == batch["label"]) & batch["mask"]).sum()


def train(on: str, options: argparse.Namespace) -> list[tuple[float, float]]:
    """Loss and test accuracy of each epoch."""
    chain = batches(draw(options.images, seed=0), 64, train=True, on=on)
    test = draw(2 * options.images, seed=1)
    weights = new_weights(0)
    moments = OPTIMIZER.init(weights)
    device, curve = jax.devices()[0], []
    with (
        DataLoader[Any](chain, sharding=device) as train_loader,
        DataLoader[Any](batches(test, 256, train=False, on=on), sharding=device) as test_loader,
    ):
        for epoch in range(options.epochs):
            losses = []
            for batch in train_loader:
                weights, moments, loss = train_step(weights, moments, batch)
                losses.append(loss)
            right = sum(int(count_right(weights, batch)) for batch in test_loader)
            curve.append((float(np.mean(losses)), right / len(test)))
            print(
                f"augmented on {on}, epoch {epoch + 1}: loss {curve[-1][0]:.4f}, "
                f"test accuracy {curve[-1][1]:.1%}",
                flush=True,
            )
    return curve


def main(arguments: list[str] | None = None) -> None:
    """Trains once, or twice to compare."""
    parser = argparse.ArgumentParser(description="Trains with augmentation on host or device.")
    parser.add_argument("--on", choices=["host", "device", "both", "none"], default="host")
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--images", type=int, default=1024, help="to train with")
    options = parser.parse_args(arguments)

    if options.on != "both":
        train(options.on, options)
        return
    host, device = (np.array(train(on, options)) for on in ("host", "device"))
    loss, accuracy = abs(host - device).max(0)
    print(f"host and device differ by at most {loss:.2g} in loss, {accuracy:.2%} in accuracy")


if __name__ == "__main__":
    main()
