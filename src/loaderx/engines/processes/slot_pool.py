"""Which slots exist, and which of them a task may use.

There are as many slots as tasks under way, and `HELD_SLOTS` more for elements that the user holds.
When the user holds more than that, elements are copied out of their slots.  Slots are added when
needed.  After a burst (many readers, each with tasks ahead) surplus slots are emptied: their memory
goes back to the system, and their numbers are used again.
"""

from __future__ import annotations

import gc
import os
from sys import getrefcount

from loaderx.engines.processes.mapped_ranges import LARGE_PAGE
from loaderx.engines.processes.protocol import SLOT_BYTES, SLOTS_AT
from loaderx.engines.processes.slots import Slot
from loaderx.engines.processes.ulimits import explained
from loaderx.memory import COUNTS_REFERENCES

HELD_SLOTS = 4  # for elements that the user holds; any more are copied out
PERIOD = 256  # tasks over which the peak of tasks under way is remembered


class SlotPool:
    """The slots of a pool of workers.  Callers hold the lock of the pool."""

    def __init__(self, descriptor: int, window: int, capacity: int) -> None:
        self._descriptor = descriptor
        self._window = window
        self._capacity = capacity
        self._all: list[Slot] = []
        self._spare: list[Slot] = []  # without a task, maybe held by the user; latest used last
        self._empty: list[Slot] = []  # without memory
        self.count = 0  # slots in use or spare: not emptied
        self.numbered = 0  # slots ever numbered, including those that a worker keeps
        self._taken = 0
        self._peak = self._peak_before = 0  # tasks under way at once, at most
        self._limit = window + HELD_SLOTS  # slots that are needed

    @property
    def spare(self) -> int:
        """Slots that no task has."""
        return len(self._spare)

    def take(self, under_way: int, *, must: bool = False) -> Slot | None:
        """A slot for a task; None if none is free.

        With ``must``, a slot is added if needed: cancelled tasks may hold all of them.
        """
        self._taken += 1
        if under_way > self._peak or self._taken % PERIOD == 0:
            self._note_peak(under_way)
        for slot in reversed(self._spare):  # the most recently used is in the caches
            # `is_free`, inlined for speed: this runs for every task.
            if getrefcount(slot.root) == slot.idle or not COUNTS_REFERENCES:
                self._spare.remove(slot)
                return slot
        if self.count < self._limit:
            return self._added()
        gc.collect(0)  # JAX may release an array only then
        for slot in [slot for slot in self._spare if slot.is_free][-1:]:
            self._spare.remove(slot)
            return slot
        return self._added() if must else None

    def put_back(self, slot: Slot) -> None:
        """Takes a slot back from its task; the user may still hold it."""
        if slot.is_kept:  # it must not be written again
            self._all.remove(slot)
            self.count -= 1
            slot = self._new()
        self._spare.append(slot)
        if self.count > self._limit:
            self._empty_some()

    def is_exhausted(self) -> bool:
        """True if no slot is free unless an element is copied out."""
        return self.count >= self._limit and not any(slot.is_free for slot in self._spare)

    def free_memory(self) -> None:
        """Returns the memory of all slots that the user does not hold to the system."""
        for slot in self._all:
            slot.free_memory()

    def _note_peak(self, under_way: int) -> None:
        if self._taken % PERIOD == 0:
            self._peak_before, self._peak = self._peak, 0
        self._peak = max(self._peak, under_way)
        most = max(self._window, self._peak, self._peak_before)
        self._limit = min(most, self._capacity) + HELD_SLOTS

    def _added(self) -> Slot:
        if not self._empty:
            return self._new()
        self.count += 1
        return self._empty.pop()

    def _new(self) -> Slot:
        end = SLOTS_AT + (self.numbered + 1) * SLOT_BYTES + LARGE_PAGE
        with explained(f"worker processes need a sparse file of {end} bytes in memory"):
            os.ftruncate(self._descriptor, end)  # a hole in a file costs nothing
        slot = Slot(self._descriptor, self.numbered)
        self.numbered += 1
        self.count += 1
        self._all.append(slot)
        return slot

    def _empty_some(self) -> None:
        """Empties surplus slots, the least recently used first."""
        too_many = self.count - self._limit
        for slot in [slot for slot in self._spare if slot.is_free][:too_many]:
            self._spare.remove(slot)
            slot.free_memory()
            self._empty.append(slot)
            self.count -= 1
