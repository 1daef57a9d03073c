"""Functions that draw from the global generators of `random`, NumPy and torch.

The generators are seeded for each record, from the record's own key, so its draws depend on
nothing else: not on the engine, the worker, or what was drawn before.  Whoever else uses them finds
them as they were, since their states are put back after each run of records.  They are shared by
all threads, so threads take turns.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from loaderx.frozen import Frozen
from loaderx.rng import Keys, key_words
from loaderx.stages.functions import Function
from loaderx.stages.transforms import Fail, Needs, each
from loaderx.tree import Tree

_turn = threading.RLock()  # a function may use another dataset that does the same

Seed = Callable[[int, int, int], None]


class SeededMap(Frozen):
    """``f(record)``, with the global generators seeded for each record."""

    function: Function
    needs: Needs = "keys"

    def on_records(self, records: list[Any], extra: Keys, fail: Fail) -> list[Any]:
        call = self.function.call
        with _generators() as seed:

            def seeded(record: Any, words: list[int]) -> Any:
                seed(*words)
                return call(record)

            # Words of their own for each generator: two that are seeded alike draw alike.
            return each(map(seeded, records, key_words(extra, 3).tolist()), len(records), fail)

    def on_batch(self, batch: Tree, extra: Keys, fail: Fail) -> Tree:
        raise AssertionError("refused when the chain was made")


@contextmanager
def _generators() -> Iterator[Seed]:
    """A function that seeds the global generators; in the end they are as they were before."""
    import random  # both take a while to import

    import numpy.random as numpy_random

    torch = getattr(sys.modules.get("torch"), "default_generator", None)

    def seed(for_random: int, for_numpy: int, for_torch: int) -> None:
        random.seed(for_random)
        # 32 bits: an array of words would take ten times as long.
        numpy_random.seed(for_numpy >> 32)  # noqa: NPY002
        if torch is not None:
            torch.manual_seed(for_torch >> 1)

    with _turn:
        states = random.getstate(), numpy_random.get_state()  # noqa: NPY002
        torch_state = None if torch is None else torch.get_state()
        try:
            yield seed
        finally:
            random.setstate(states[0])
            numpy_random.set_state(states[1])  # noqa: NPY002
            if torch is not None:
                torch.set_state(torch_state)
