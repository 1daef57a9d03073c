"""The seed of a loader: its ``generator``, or one that torch's global generator gives.

In torch every loader has an order of its own, and ``torch.manual_seed`` decides which.  A loader
without a ``generator`` does the same here.
"""

from __future__ import annotations

import itertools
import sys

import numpy as np

from loaderx import ArgumentTypeError
from loaderx.extend import check_int, seed_words

numbers = itertools.count()
"""The numbers of the loaders of this process."""


def seed_of(generator: object) -> int:
    """The seed of a generator."""
    if isinstance(generator, np.random.Generator):
        return int(generator.integers(1 << 63))
    initial = getattr(generator, "initial_seed", None)  # of a torch.Generator
    if callable(initial):
        return int(initial()) & ((1 << 63) - 1)
    try:
        return check_int("generator", generator, least=0)
    except ArgumentTypeError:
        raise ArgumentTypeError(
            "`generator` must be a seed, or a generator of torch or NumPy; got "
            f"{type(generator).__name__}."
        ) from None


def drawn_seed(number: int) -> int:
    """A seed for a loader without a generator: drawn from torch's, or else of its number."""
    torch = sys.modules.get("torch")
    generator = getattr(torch, "default_generator", None)
    if torch is None or generator is None:
        return seed_words(number, 0, 0)[0] >> 1  # no small one that another loader may be given
    # On the CPU also where the program has set another default device.
    return int(torch.randint(1 << 62, (), generator=generator, device="cpu"))
