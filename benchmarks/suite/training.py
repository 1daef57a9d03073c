"""A small training step in JAX, which takes the place of the consumer that adds up all words.

A network of one hidden layer, plain gradient descent, compiled once before any clock.  The step
also adds up all pixels and labels, so that whoever hands out other bytes is found out.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from suite.workloads import Record

HIDDEN, CLASSES = 128, 10
SUM_MASK = (1 << 32) - 1
"""Sums of the step have 32 bits: JAX has no more unless it is told so."""


class TrainingStep:
    """Call it with batches; `total` waits for the last step, and is the sum of all bytes."""

    def __init__(self, batch_size: int, shape: tuple[int, ...] = (28, 28)) -> None:
        import jax

        rng = np.random.default_rng(0)
        pixels = int(np.prod(shape))
        sizes = ((pixels, HIDDEN), (HIDDEN, CLASSES))
        weights = [rng.standard_normal(size, np.float32) / size[0] ** 0.5 for size in sizes]
        self.state = jax.device_put((weights, np.uint32(0)))
        self._step = compiled_step()
        empty = np.zeros((batch_size, *shape), np.uint8)
        labels = np.zeros(batch_size, np.int32)
        jax.block_until_ready(self._step(self.state, empty, labels))  # compiles

    def __call__(self, batch: Record) -> None:
        """Starts a step; the next batch is loaded while it runs, as in any training loop."""
        self.state = self._step(self.state, batch["image"], batch["label"])

    def total(self) -> int:
        return int(self.state[1])


@cache
def compiled_step() -> Any:
    """``f((weights, sum), images, labels)``: both after one step.  One for the whole process."""
    import jax
    import jax.numpy as jnp

    def loss(weights: Any, image: Any, label: Any) -> Any:
        x = image.reshape(len(image), -1).astype(jnp.float32) / 255
        scores = jnp.maximum(x @ weights[0], 0) @ weights[1]
        chosen = jnp.take_along_axis(scores, (label % CLASSES)[:, None], axis=1)[:, 0]
        return (jax.nn.logsumexp(scores, axis=1) - chosen).mean()

    @jax.jit
    def step(state: Any, image: Any, label: Any) -> Any:
        weights, total = state
        slopes = jax.grad(loss)(weights, image, label)
        weights = [weight - 0.01 * slope for weight, slope in zip(weights, slopes, strict=True)]
        total += image.sum(dtype=jnp.uint32) + label.astype(jnp.uint32).sum(dtype=jnp.uint32)
        return weights, total

    return step
