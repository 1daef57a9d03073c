"""The seed of a loader: a number, or drawn from a generator.

In torch every loader has an order of its own, and ``torch.manual_seed`` decides which.  A loader
without a ``generator`` does the same here.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

import numpy as np

from loaderx import ArgumentTypeError
from loaderx.extend import check_int, seed_words

numbers = itertools.count()
"""The numbers of the loaders of this process."""


def fixed_seed(generator: object) -> int | None:
    """The seed if it was given as a number; None if it is to be drawn."""
    is_torchs = callable(getattr(generator, "initial_seed", None))
    if generator is None or is_torchs or isinstance(generator, np.random.Generator):
        return None
    try:
        return check_int("generator", generator, least=0)
    except ArgumentTypeError:
        raise ArgumentTypeError(
            "`generator` must be a seed, or a generator of torch or NumPy; got "
            f"{type(generator).__name__}."
        ) from None


def drawn_seed(generator: Any, number: int) -> int:
    """Another seed for every loader: drawn from its generator or torch's, or else of its number."""
    if isinstance(generator, np.random.Generator):
        return int(generator.integers(1 << 62))
    torch = sys.modules.get("torch")
    if generator is None:
        generator = getattr(torch, "default_generator", None)
    if torch is None or generator is None:
        return seed_words(number, 0, 0)[0] >> 1  # no small one that another loader may be given
    # The device is named, since the program may have set another default.
    return int(torch.randint(1 << 62, (), generator=generator, device=generator.device))
