"""Augmentation of single images on the host, by loaderx and by torchvision's v2, on one thread.

    python benchmarks/augmentation.py [--side 224] [--rounds 200]

Both get one decoded image of bytes, loaderx [height, width, 3], torchvision a tensor [3, height,
width], and draw by themselves.  The sides take turns, image by image; the figures are the smallest
times of what always does the same work, and means of what draws its work.  A ratio
above 1 means that loaderx is faster.  It needs torchvision.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import perf_counter

import numpy as np

import loaderx as lx


def image_of(side: int) -> np.ndarray:
    """A smooth image with some noise, as photographs have it."""
    rng = np.random.default_rng(0)
    waves = np.sin(np.arange(side)[:, None, None] / (9, 14, 23)) + np.sin(
        np.arange(side)[None, :, None] / (11, 17, 7)
    )
    return np.clip(waves * 50 + 127 + rng.normal(0, 6, (side, side, 3)), 0, 255).astype(np.uint8)


def pairs() -> dict[str, tuple[Callable, Callable, Callable]]:
    """A stage of loaderx, that of torchvision, and which time counts."""
    from torchvision.transforms import v2

    ours = lx.image
    amounts = (0.4, 0.4, 0.4, 0.1)

    def pad_and_crop(image):
        return v2.RandomCrop(image.shape[1:], 4)(image)

    left_right, up_down = v2.RandomHorizontalFlip(1), v2.RandomVerticalFlip(1)
    return {
        "random_flip_left_right": (ours.random_flip_left_right(probability=1), left_right, min),
        "random_flip_up_down": (ours.random_flip_up_down(probability=1), up_down, min),
        "random_pad_and_crop": (ours.random_pad_and_crop(4), pad_and_crop, min),
        "random_resized_crop": (ours.random_resized_crop(224), v2.RandomResizedCrop(224), np.mean),
        "color_jitter": (ours.color_jitter(*amounts), v2.ColorJitter(*amounts), min),
        "brightness alone": (ours.color_jitter(0.4), v2.ColorJitter(0.4), min),
        "rand_augment": (ours.rand_augment(), v2.RandAugment(), np.mean),
        "random_erasing": (ours.random_erasing(probability=1), v2.RandomErasing(1), min),
    }


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--side", type=int, default=224, help="of the image")
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    image = image_of(options.side)
    tensor = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))
    rng = np.random.default_rng(0)
    print(f"{'microseconds per image':24} {'loaderx':>9} {'torchvision':>12} {'ratio':>7}")
    for name, (ours, theirs, figure) in pairs().items():
        calls = (lambda ours=ours: ours(image, rng), lambda theirs=theirs: theirs(tensor))
        times: tuple[list[float], list[float]] = ([], [])
        for number in range(options.rounds):
            for side in (0, 1) if number % 2 else (1, 0):
                start = perf_counter()
                calls[side]()
                times[side].append(1e6 * (perf_counter() - start))
        one, other = (float(figure(each[5:])) for each in times)
        print(f"{name:24} {one:9.0f} {other:12.0f} {other / one:6.2f}x")


if __name__ == "__main__":
    main()
