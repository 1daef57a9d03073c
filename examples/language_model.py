"""Trains a tiny language model on Python's own documentation strings.

    python examples/language_model.py [--steps 200] [--checkpoint FOLDER]

Documentation strings become bytes, bytes are packed into rows of 128, and a transformer of 100,000
parameters learns to guess the next byte.  With ``--checkpoint`` it saves the model and the position
in the data every 50 steps and at its end, and goes on from there the next time, also after
``kill -9``: the losses are those of a run that never stopped.

Needs jax, flax, optax and tqdm: pip install ".[demo]" in a checkout of loaderx
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from loaderx import DataLoader, Dataset

MODULES = """
abc argparse ast base64 bisect calendar codecs collections contextlib copy csv dataclasses datetime
decimal difflib enum fractions functools glob gzip hashlib heapq html inspect io ipaddress itertools
json logging math operator os pathlib pickle pprint queue random re shutil socket statistics string
struct subprocess tempfile textwrap threading time traceback types typing unittest urllib.parse uuid
warnings weakref zipfile
"""
ROW = 128  # bytes in a row
WIDTH, LAYERS, HEADS = 64, 2, 4
SAVE_EVERY = 50  # steps


# Data -------------------------------------------------------------------------------------------


def documents() -> list[str]:
    """The documentation of modules of the standard library, and of what is in them."""
    found: dict[str, None] = {}
    for name in MODULES.split():
        module = importlib.import_module(name)
        for _, thing in [("", module), *inspect.getmembers(module)]:
            text = inspect.getdoc(thing) if callable(thing) or thing is module else None
            if text and len(text) > 20:
                found[text] = None
    return list(found)


def tokenise(text: str) -> dict[str, np.ndarray]:
    """Bytes, with 0 at the end of the text."""
    return {"tokens": np.frombuffer(text.encode() + b"\0", np.uint8)}


def dataset(batch_size: int = 16) -> Dataset[Any]:
    """Rows of several texts each, without end."""
    return (
        Dataset.from_source(documents())
        .shuffle(seed=0)
        .map(tokenise)
        .pack({"tokens": ROW}, overflow="split", window=256)
        .repeat()
        .batch(batch_size)
    )


# Model ------------------------------------------------------------------------------------------


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.before = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attend = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.between = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.widen = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.narrow = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        x = x + self.attend(self.before(x), mask=mask)
        return x + self.narrow(nnx.gelu(self.widen(self.between(x))))


class Transformer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.tokens = nnx.Embed(256, WIDTH, rngs=rngs)
        self.places = nnx.Embed(ROW, WIDTH, rngs=rngs)
        for number in range(LAYERS):
            setattr(self, f"block{number}", Block(rngs))
        self.out = nnx.Linear(WIDTH, 256, rngs=rngs)

    def __call__(self, batch: dict[str, jax.Array]) -> jax.Array:
        x = self.tokens(batch["tokens"].astype(jnp.int32)) + self.places(batch["tokens_positions"])
        segments = batch["tokens_segment_ids"]
        # A byte sees the bytes before it, of its own text only.
        same = segments[:, :, None] == segments[:, None, :]
        mask = jnp.tril(same)[:, None]
        for number in range(LAYERS):
            x = getattr(self, f"block{number}")(x, mask)
        return self.out(x)


def loss_of(model: Transformer, batch: dict[str, jax.Array]) -> jax.Array:
    """The mean surprise at the next byte, where that is of the same text."""
    logits = model(batch)[:, :-1]
    targets = batch["tokens"][:, 1:].astype(jnp.int32)
    segments = batch["tokens_segment_ids"]
    counts = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    return (losses * counts).sum() / counts.sum()


@nnx.jit
def train_step(model: Transformer, optimizer: nnx.Optimizer, batch: Any) -> jax.Array:
    loss, gradients = nnx.value_and_grad(loss_of)(model, batch)
    optimizer.update(model, gradients)
    return loss


# Training ---------------------------------------------------------------------------------------


def save(folder: Path, model: Any, optimizer: Any, position: dict[str, Any]) -> None:
    """The model, the optimiser, and the position in the data, in one file.

    It takes the place of the last one when it is complete, so a run may be killed at any time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(nnx.state((model, optimizer)))]
    np.savez(folder / "unfinished.npz", *leaves, position=json.dumps(position))
    os.replace(folder / "unfinished.npz", folder / "checkpoint.npz")


def load(folder: Path, model: Any, optimizer: Any) -> dict[str, Any]:
    """Restores the model and the optimiser; returns the position in the data."""
    leaves, structure = jax.tree.flatten(nnx.state((model, optimizer)))
    with np.load(folder / "checkpoint.npz") as file:
        saved = [jnp.asarray(file[f"arr_{number}"]) for number in range(len(leaves))]
        position: dict[str, Any] = json.loads(str(file["position"]))
    nnx.update((model, optimizer), jax.tree.unflatten(structure, saved))
    return position


def train(steps: int, checkpoint: Path | None = None, *, quiet: bool = False) -> list[float]:
    """Trains up to a number of steps, from the checkpoint if there is one; returns the losses."""
    model = Transformer(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)
    losses = []
    with DataLoader(dataset()) as loader:
        batches = iter(loader)
        if checkpoint is not None and (checkpoint / "checkpoint.npz").exists():
            batches.set_state(load(checkpoint, model, optimizer))
        while batches.step < steps:
            step = batches.step
            losses.append(float(train_step(model, optimizer, next(batches))))
            if not quiet and (step % 20 == 0 or step == steps - 1):
                print(f"step {step:4d}  loss {losses[-1]:.3f}", flush=True)
            if checkpoint is not None and (batches.step % SAVE_EVERY == 0 or batches.step == steps):
                save(checkpoint, model, optimizer, batches.get_state())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--checkpoint", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    losses = train(options.steps, options.checkpoint)
    if losses:
        print(f"from {losses[0]:.3f} to {losses[-1]:.3f} in {len(losses)} steps")
    else:
        print(f"the checkpoint is at step {options.steps} or beyond already")


if __name__ == "__main__":
    main()
