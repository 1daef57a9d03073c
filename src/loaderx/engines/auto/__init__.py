"""The engine that is chosen by measuring, while the stream goes on.

What is measured is how long the consumer waits for a batch (W, while batches are made inline) and
what it does itself until it asks for the next one (C).  A program of JAX's compiles its step when
it has the first batch, and often again when it has the second: so C is the lower quartile of the
last times, and longer ones are left out.  Batches may take microseconds, and a unit of a stream
minutes, so time is what ends a measurement, never a number of batches alone.  A unit that took half
a second is enough by itself.

It stays inline if W is under 150 us, or under 3 % of W + C: nothing could be won.  Otherwise it
tries as many threads as W and C ask for.  The best that n workers could do is a batch every
max(C, W / n); they are kept if at least half of that came true, or a tenth of the time was won.  If
batches take 2 ms or more, a trial begins with a single task, and while the consumer waits for it,
it takes short naps: a thread that holds the GIL lets nobody wake in time.  Then worker processes
are started instead, beside the stream, if they are worth their price; so they are where threads
were tried in vain, or must not read the source.  Since a batch depends on its step alone, changing
engines between two steps changes nothing in the data.

What was decided is looked at every second while the consumer waits for a fifth of its time or more.
What was tried and lost is tried again after 5 s, 20 s, 80 s, ...  It all goes on over the loader's
iterators, however short they are.

`session` submits tasks to the engine in use, `search` says which one that is, `timing` has what was
measured, and `decision` what to choose then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaderx.engines.base import Work, cores, warn_if_in_order
from loaderx.errors import check_int
from loaderx.frozen import Frozen

if TYPE_CHECKING:
    from loaderx.engines.auto.session import AutoSession


class Auto(Frozen):
    """Inline, threads or processes, whichever is measured to be faster.

    ``max_workers`` bounds the workers.
    """

    max_workers: int | None = None
    prefetch: int | None = None

    def __post_init__(self) -> None:
        if self.max_workers is not None:
            check_int("max_workers", self.max_workers, least=1)
        if self.prefetch is not None:
            check_int("prefetch", self.prefetch, least=0)

    def session(self, work: Work) -> AutoSession:
        from loaderx.engines.auto.session import AutoSession  # late: importing loaderx is light

        if self.max_workers is not None:
            warn_if_in_order(work, f"num_workers={self.max_workers}")
        return AutoSession(
            work, self.max_workers or cores(), self.prefetch, asked=self.max_workers is not None
        )
