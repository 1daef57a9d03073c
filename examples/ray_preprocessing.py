"""Images are decoded and resized once, by workers of Ray, and saved; training reads the result.

    python examples/ray_preprocessing.py [--address HOST:PORT] [--workers 2] [--images 200]

Without --address, Ray runs on this machine alone.  With it (or with RAY_ADDRESS), workers run on
any machine of that cluster, and --folder must be one that all of them see under the same path.
The images are drawn here, so that nothing has to be downloaded.  Needs the extras ray and images.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

import loaderx as lx
from loaderx import DataLoader, Dataset
from loaderx.engines import Ray

SIDE = 64
KINDS = ("dark", "light")


def draw(folder: Path, count: int) -> None:
    """JPEG files of various sizes in a folder for each class."""
    rng = np.random.default_rng(0)
    for kind, name in enumerate(KINDS):
        (folder / name).mkdir(parents=True)
        for number in range(count // len(KINDS)):
            coarse = rng.integers(100 * kind, 156 + 100 * kind, (15, 20, 3)).astype(np.uint8)
            size = (400 + number % 7, 300 + number % 5)
            Image.fromarray(coarse).resize(size).save(folder / name / f"{number:05}.jpg")


@jax.jit
def step(weights: Any, batch: Any) -> tuple[Any, Any]:
    """A linear model, which stands for yours."""

    def loss_of(weights: Any) -> Any:
        x = batch["image"].reshape(len(batch["label"]), -1) / 255 - 0.5
        chosen = jnp.take_along_axis(jax.nn.log_softmax(x @ weights), batch["label"][:, None], 1)
        return -chosen.mean()

    loss, gradient = jax.value_and_grad(loss_of)(weights)
    return weights - 0.01 * gradient, loss


def main(arguments: list[str] | None = None) -> None:
    """Draws, prepares, saves, opens, trains."""
    parser = argparse.ArgumentParser(description="Prepares images with Ray, and trains on them.")
    parser.add_argument("--address", help="of a Ray cluster; by default Ray runs here")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--folder", type=Path, help="new; a temporary one by default")
    options = parser.parse_args(arguments)
    if options.folder:
        run(options.folder.resolve(), options)
    else:
        with tempfile.TemporaryDirectory(prefix="loaderx-ray-") as folder:
            run(Path(folder), options)


def run(folder: Path, options: argparse.Namespace) -> None:
    """The whole program, in a folder."""
    draw(folder / "photos", options.images)
    photos = Dataset.open(folder / "photos", decode=False)  # bytes: resize decodes them
    small = photos.map(lx.image.resize(SIDE))

    begun = time.perf_counter()
    small.save(folder / "small", engine=Ray(options.workers, address=options.address))
    took = time.perf_counter() - begun
    print(f"{len(small)} images prepared by {options.workers} workers of Ray in {took:.1f} s")

    saved = Dataset.open(folder / "small")
    assert np.array_equal(saved[1]["image"], small[1]["image"])  # the bytes that any engine makes
    weights = jnp.zeros((SIDE * SIDE * 3, len(KINDS)))
    train = saved.shuffle(seed=0).batch(32, drop_remainder=True).repeat(3)
    with DataLoader(train) as loader:
        for number, batch in enumerate(loader):
            weights, loss = step(weights, batch)
            if number % 4 == 0:
                print(f"step {number}: loss {loss:.3f}")


if __name__ == "__main__":
    main()
