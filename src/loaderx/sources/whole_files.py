"""Files that fit into memory are read from beginning to end while their rows come from disk.

The rows of a shuffled batch lie apart, and many disks give no more than some thousand of those in
a second, where a file of 300 MB in sequence takes half a second.  An epoch needs all of it anyway,
so with every batch the kernel is asked for the next piece as well.
"""

from __future__ import annotations

import contextlib
import mmap
import weakref

from loaderx.free_memory import free_memory
from loaderx.sources.mapping import request_pages

PIECE_BYTES = 8 << 20  # with each batch: little beside what a disk gives in a step's time
_MEMORY_SHARE = 0.5  # of what is free: the program that trains needs some


class WholeFiles:
    """The mapped files of one source, and how far each has been read.

    If one of them does not fit beside the others, no more is read: pages would push each other out.
    """

    def __init__(self) -> None:
        self._room: int | None = None
        self._done: weakref.WeakKeyDictionary[mmap.mmap, int] = weakref.WeakKeyDictionary()

    def add(self, mapped: mmap.mmap) -> None:
        """A file that is going to be read.  One that is mapped again counts again."""
        if mapped in self._done:
            return
        if self._room is None:
            self._room = int((free_memory() or 0) * _MEMORY_SHARE)
        self._room -= len(mapped)
        self._done[mapped] = 0

    def read_on(self) -> None:
        """Asks the kernel for the next piece of a file."""
        if self._room is None or self._room < 0:
            return
        for mapped, done in list(self._done.items()):
            with contextlib.suppress(ValueError, OSError):  # closed: nobody reads it any more
                if done < len(mapped):
                    piece = min(PIECE_BYTES, len(mapped) - done)
                    self._done[mapped] = done + piece
                    request_pages(mapped, done, piece)
                    return
