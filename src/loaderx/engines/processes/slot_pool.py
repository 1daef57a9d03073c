"""Which slots there are, and which of them a task may use.

There are as many slots as tasks are under way, and `HELD_SLOTS` more for elements that the user
holds.  When the user holds more than that, elements are copied out of their slots.  Slots are added
when they are needed.  After a burst (many readers, each with tasks ahead) those that are not needed
any more are emptied: their memory goes back to the system, and their numbers are used again.
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

HELD_SLOTS = 4  # for elements that the user holds; when more are held, they are copied out
PERIOD = 256  # tasks over which the most that were under way at once is remembered


class SlotPool:
    """The slots of a pool of workers.  Whoever calls it holds the lock of the pool."""

    def __init__(self, descriptor: int, window: int, capacity: int) -> None:
        self._descriptor = descriptor
        self._window = window
        self._capacity = capacity
        self._all: list[Slot] = []
        self._spare: list[Slot] = []  # of no task; the user may hold them.  The warmest is last
        self._empty: list[Slot] = []  # without memory
        self.count = 0  # slots that have memory, or may get some
        self.numbered = 0  # slots that ever were, those that a worker keeps included
        self._taken = 0
        self._peak = self._peak_before = 0  # tasks under way at once, at most
        self._limit = window + HELD_SLOTS  # slots that are needed

    @property
    def spare(self) -> int:
        """Slots that no task has."""
        return len(self._spare)

    def take(self, under_way: int, *, must: bool = False) -> Slot | None:
        """A slot for a task; None if there is none to be had.

        If it ``must`` be, a slot is added: all may be taken by tasks that nobody wants any more.
        """
        self._taken += 1
        if under_way > self._peak or self._taken % PERIOD == 0:
            self._note_peak(under_way)
        for slot in reversed(self._spare):  # the most recently used is warm
            # This is `is_free`, written out: it is looked up for every task.
            if getrefcount(slot.root) == slot.idle or not COUNTS_REFERENCES:
                self._spare.remove(slot)
                return slot
        if self.count < self._limit:
            return self._added()
        gc.collect(0)  # JAX may let go of an array only then
        for slot in [slot for slot in self._spare if slot.is_free][-1:]:
            self._spare.remove(slot)
            return slot
        return self._added() if must else None

    def put_back(self, slot: Slot) -> None:
        """The task of a slot needs it no more; the user may still hold it."""
        if slot.is_kept:  # it must not be written again: another one takes its place
            self._all.remove(slot)
            self.count -= 1
            slot = self._new()
        self._spare.append(slot)
        if self.count > self._limit:
            self._empty_some()

    def is_exhausted(self) -> bool:
        """Is there no slot to go on with, unless one is copied out?"""
        return self.count >= self._limit and not any(slot.is_free for slot in self._spare)

    def free_memory(self) -> None:
        """Returns to the system what nobody holds; what the user holds is the user's."""
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
        """There are more slots than are needed: those that were not used for longest go first."""
        too_many = self.count - self._limit
        for slot in [slot for slot in self._spare if slot.is_free][:too_many]:
            self._spare.remove(slot)
            slot.free_memory()
            self._empty.append(slot)
            self.count -= 1
