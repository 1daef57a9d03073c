"""Chooses an engine by measuring, while the stream runs.

Two times are measured: how long the consumer waits for a batch made inline (W), and how long it
works before asking for the next one (C).  A JAX program compiles its step at the first batch, and
often again at the second, so C is the lower quartile of recent times and outliers are ignored.
A batch may take microseconds and a unit of a stream minutes, so a measurement ends after a time,
not after a number of batches.  A unit that took half a second is enough by itself.

The engine stays inline if W is under 150 us, or under 3 % of W + C: there is nothing to gain.
Otherwise it tries as many threads as W and C call for.  At best n workers deliver a batch every
max(C, W / n); they are kept if they achieve at least half of that gain, or save a tenth of the
time.  If batches take 2 ms or more, a trial begins with a single task, and the consumer takes short
naps while it waits for it: naps that last too long show that a thread holds the GIL.  In that case,
and where threads did not help or must not read the source, worker processes are started beside the
stream, if they are worth their price.  Since a batch depends on its step alone, changing engines
between two steps changes nothing in the data.

A decision is reviewed every second while the consumer spends a fifth of its time or more waiting.
An engine that lost a trial is tried again after 5 s, 20 s, 80 s, ...  Measurements carry over from
one iterator of the loader to the next, however short they are.

`session` submits tasks to the engine in use, `search` says which one that is, `timing` holds the
measurements, and `decision` the rules for choosing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaderx.engines.base import Work, check_counts, cores, warn_if_in_order
from loaderx.frozen import Frozen

if TYPE_CHECKING:
    from loaderx.engines.auto.session import AutoSession


class Auto(Frozen):
    """Inline, threads or processes, whichever is measured to be fastest.

    ``max_workers`` bounds the workers.
    """

    max_workers: int | None = None
    prefetch: int | None = None

    def __post_init__(self) -> None:
        check_counts("max_workers", self.max_workers, self.prefetch)

    def session(self, work: Work) -> AutoSession:
        from loaderx.engines.auto.session import AutoSession  # late: importing loaderx is light

        if self.max_workers is not None:
            warn_if_in_order(work, f"num_workers={self.max_workers}")
        return AutoSession(
            work, self.max_workers or cores(), self.prefetch, asked=self.max_workers is not None
        )
