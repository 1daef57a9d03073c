"""Functions that draw from the global generators of `random`, NumPy and torch.

The generators are seeded for each record, from the record's own key, so its draws depend on
nothing else: not on the engine, the worker, or what was drawn before.  Their states are put back
after each run of records, so other code does not notice.  They are shared by all threads, so
threads take turns.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from loaderx.chain.functions import Function
from loaderx.chain.transforms import Fail, Transform, each
from loaderx.rng import Keys, key_words
from loaderx.tree import Tree

_turn = threading.RLock()  # reentrant: a function may read another dataset with such functions

Seed = Callable[[int, int, int], None]


class SeededMap(Transform):
    """``f(record)``, with the global generators seeded for each record."""

    function: Function

    needs = "keys"
    goes_singly = False

    def on_records(self, records: list[object], extra: Keys, fail: Fail) -> list[object]:
        call = self.function.call
        with _generators() as seed:

            def seeded(record: object, words: list[int]) -> object:
                seed(*words)
                return call(record)

            # Each generator gets its own word: two with the same seed would draw the same numbers.
            return each(map(seeded, records, key_words(extra, 3).tolist()), len(records), fail)

    def on_batch(self, batch: Tree, extra: Keys, fail: Fail) -> Tree:
        raise AssertionError("refused when the chain was made")

    @property
    def options(self) -> dict[str, object]:
        return {"seed_globals": True}


@contextmanager
def _generators() -> Iterator[Seed]:
    """A function that seeds the global generators; their states are restored in the end."""
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


class GlobalDraws:
    """Notices that functions draw from global generators, where each worker has its own.

    It compares their states with those at the start, after the first step, the second, the fourth,
    the eighth, and so on: often enough to notice, too rarely to cost anything.
    """

    def __init__(self) -> None:
        self._before = _states()
        self._steps, self._next = 0, 1

    def notice(self) -> str | None:
        """Called after each step: the warning to give, if there is one, and only once."""
        self._steps += 1
        if self._steps < self._next:
            return None
        self._next *= 2
        now = _states()
        drawn = [name for name, state in now.items() if state != self._before.get(name)]
        # A generator imported after the start: its position shows whether it was used.
        drawn = [name for name in drawn if name in self._before or now[name][0] not in _FRESH]
        if not drawn:
            return None
        self._next = sys.maxsize
        return (
            f"functions of this dataset draw from the global generator of {' and '.join(drawn)}, "
            "which differs in every worker process and every run: the data cannot be reproduced. "
            "Write .random_map(f) with f(record, rng), or for older code "
            ".random_map(f, seed_globals=True). (Ignore this if they seed it for each record.)"
        )


_FRESH = (623, 624)  # positions of a Mersenne Twister that has been seeded, and not used
_GETTERS = {"NumPy": ("numpy.random", "get_state"), "random": ("random", "getstate")}


def _states() -> dict[str, tuple[int, object]]:
    """The states of the imported global generators, in a form that can be compared."""
    found: dict[str, tuple[int, object]] = {}
    for name, (module, getter) in _GETTERS.items():
        # None also while another thread imports the module.
        get = getattr(sys.modules.get(module), getter, None)
        # In Dask's workers its own threads draw from `random` all the time.
        if get is not None and (name != "random" or "distributed" not in sys.modules):
            found[name] = _state(name, get)
    return found


def _state(name: str, get: Callable[[], Any]) -> tuple[int, object]:
    """The position, and the words."""
    state = get()
    if name == "random":
        *words, position = state[1]
        return position, words
    return int(state[2]), state[1].tobytes()
