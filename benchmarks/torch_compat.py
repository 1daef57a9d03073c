"""`loaderx.compat.torch.DataLoader` against torch's; read `figures.py` first for how it is taken.

    python benchmarks/torch_compat.py [--quick] [--only NAME ...] [--json FILE]

Both loaders get the same arguments, the same dataset (a plain class with ``__getitem__``, or
torch's own) and torch's ``RandomSampler`` where nothing else is said.

tutorial        28 x 28 pictures as torchvision's MNIST gives them (PIL images), flattened and cast
                to float32 one by one, in batches of 128: the loader of the JAX tutorials, with its
                collate function.  Nearly all of the time is the user's own Python, on both sides
arrays          28 x 28 arrays, in batches of 128, default collate
dicts           records of three leaves, default collate
tensors         TensorDataset, shuffle=True
workers         records of 2 ms of Python, num_workers=2, workers kept
large           one array of 8 MB for each batch, num_workers=1, workers kept

Needs torch; without it, every row is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from figures import Bar, Figures, Row, compare, main, skipped

from loaderx.compat import torch as ours


class Pictures:
    def __init__(self, count: int) -> None:
        self.images = np.random.default_rng(0).integers(0, 256, (count, 28, 28), np.uint8)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        return self.images[index], index % 10


class Mnist(Pictures):
    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        return flatten_and_cast(Image.fromarray(self.images[index])), index % 10


class Dicts(Pictures):
    def __getitem__(self, index: int) -> Any:
        return {"image": self.images[index], "label": index % 10, "weight": 0.5}


class Slow:
    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> Any:
        total = 0
        for number in range(20_000):
            total += number * index
        return np.array([index, total % 1000])


class Blocks:
    def __init__(self) -> None:
        self.blocks = np.ones((4, 1 << 20), np.float64)

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> Any:
        return self.blocks[index % 4]


def flatten_and_cast(image: Any) -> Any:
    return np.ravel(np.array(image, dtype=np.float32))


def as_arrays(samples: Any) -> Any:
    pictures, labels = zip(*samples, strict=True)
    return [np.stack(pictures), np.array(labels)]


class Epochs:
    """A side: some epochs of a loader, as named leaves; the loader is kept between rounds."""

    def __init__(self, loader: Any, epochs: int) -> None:
        self.loader, self.epochs = loader, epochs

    def __call__(self) -> Iterator[dict[str, Any]]:
        for _ in range(self.epochs):
            for batch in self.loader:
                leaves = batch if isinstance(batch, (list, dict)) else [batch]
                named = leaves if isinstance(leaves, dict) else dict(enumerate(leaves))
                yield {str(name): np.asarray(leaf) for name, leaf in named.items()}


def versus(
    name: str, quick: bool, dataset: Any, batch_size: int, least: float, **options: Any
) -> list[Row]:
    bar = Bar(">=", least)
    try:
        import torch.utils.data as theirs
    except ImportError as error:
        return [skipped(name, bar, error)]
    if not options.pop("plain", False):
        options["sampler"] = theirs.RandomSampler(dataset)
    epochs = 1 if quick else options.pop("epochs", 2)
    options.pop("epochs", None)
    sides = [
        Epochs(module.DataLoader(dataset, batch_size, **options), epochs)
        for module in (ours, theirs)
    ]
    found = compare(*sides, 1 if quick else 7)
    return [found.row(name, bar, epochs * len(dataset))]


def tutorial(quick: bool) -> list[Row]:
    dataset = Mnist(2_000 if quick else 20_000)
    return versus("tutorial", quick, dataset, 128, 0.9, collate_fn=as_arrays)


def arrays(quick: bool) -> list[Row]:
    return versus("arrays", quick, Pictures(2_000 if quick else 20_000), 128, 1)


def dicts(quick: bool) -> list[Row]:
    return versus("dicts", quick, Dicts(2_000 if quick else 20_000), 128, 1)


def tensors(quick: bool) -> list[Row]:
    try:
        import torch
        from torch.utils.data import TensorDataset
    except ImportError as error:
        return [skipped("tensors", Bar(">=", 5), error)]
    images = torch.from_numpy(Pictures(2_000 if quick else 60_000).images)
    dataset = TensorDataset(images, torch.arange(len(images)) % 10)
    return versus("tensors", quick, dataset, 128, 5, shuffle=True, plain=True)


def workers(quick: bool) -> list[Row]:
    options = {"num_workers": 2, "persistent_workers": True}
    return versus("workers", quick, Slow(), 8, 0.9, shuffle=True, plain=True, epochs=1, **options)


def large(quick: bool) -> list[Row]:
    options = {"num_workers": 1, "persistent_workers": True}
    return versus("large", quick, Blocks(), 1, 1, plain=True, epochs=1, **options)


FIGURES: Figures = {
    "tutorial": tutorial,
    "arrays": arrays,
    "dicts": dicts,
    "tensors": tensors,
    "workers": workers,
    "large": large,
}

if __name__ == "__main__":
    main(FIGURES, "the words of torch")
