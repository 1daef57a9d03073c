"""Random numbers by index: Philox, keyed by a seed, with the index as its counter."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class CountedGenerator:
    """A generator that can be set to an index."""

    __slots__ = ("_bits", "_counter", "_state", "rng")

    def __init__(self, seed: int) -> None:
        self._bits = np.random.Philox(seed)
        self.rng = np.random.Generator(self._bits)
        self._counter: npt.NDArray[np.uint64] = np.zeros(4, np.uint64)
        key = self._bits.state["state"]["key"]
        # Kept and handed in again: to ask for the state takes longer than to set it.
        self._state = {
            "bit_generator": "Philox",
            "state": {"counter": self._counter, "key": key},
            "buffer": np.zeros(4, np.uint64),
            "buffer_pos": 4,
            "has_uint32": 0,
            "uinteger": 0,
        }

    def at(self, index: int, op_seed: int = 0) -> np.random.Generator:
        """The generator, as it is at the beginning of an index."""
        self._counter[2] = op_seed
        self._counter[3] = index
        self._bits.state = self._state  # type: ignore[assignment]
        return self.rng


class RngPool:
    """Generators of one seed, for several threads at once."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._free: list[CountedGenerator] = []
        self._taken: dict[int, CountedGenerator] = {}

    def __reduce__(self) -> tuple[type[RngPool], tuple[int]]:
        return RngPool, (self._seed,)

    def take(self) -> CountedGenerator:
        """A generator that nobody uses; to be given back."""
        try:
            return self._free.pop()
        except IndexError:
            return CountedGenerator(self._seed)

    def give_back(self, counted: CountedGenerator) -> None:
        """For the next who asks."""
        self._free.append(counted)

    def acquire_rng(self, index: int, *, op_seed: int = 0) -> np.random.Generator:
        """The generator of an index, until it is released."""
        counted = self.take()
        self._taken[id(counted.rng)] = counted
        return counted.at(index, op_seed)

    def release_rng(self, rng: np.random.Generator) -> None:
        """Ends the use of a generator."""
        self.give_back(self._taken.pop(id(rng)))
