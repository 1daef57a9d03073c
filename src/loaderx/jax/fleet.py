"""Which of several hosts holds the others up."""

from __future__ import annotations

import weakref
from typing import Any, Protocol

import jax
import numpy as np

from loaderx.errors import ArgumentTypeError
from loaderx.frozen import Frozen

WAITS = 0.03  # share of a step from which a host's waiting for data counts
APART = 2.0  # times the usual wait, from which a host is slower than the others
KEPT = 8  # looks


class Loader(Protocol):
    def _totals(self) -> tuple[float, float, float]: ...


class Host(Frozen):
    """One host: an entry of `Fleet.hosts`.

    Attributes:
        steps: since the last look.
        step_ms: from one batch to the next.
        waited_ms: how much of a step it waited for data.
    """

    steps: int
    step_ms: float
    waited_ms: float


class Fleet(Frozen):
    """How long each host waits for its data: what `fleet` returns.

    All hosts of a program take the same steps.  One that waits for data makes the others wait in
    the step itself, where no loader sees it.

    Attributes:
        hosts: by process index.
        slow: the indices of hosts that wait far longer than the others.
        changes: True if earlier looks had other slow hosts.  Then no machine is broken: all are too
            slow now and then.
    """

    hosts: tuple[Host, ...]
    slow: tuple[int, ...]
    changes: bool

    def __str__(self) -> str:
        lines = [self._verdict]
        for index, host in enumerate(self.hosts):
            mark = "  slow" if index in self.slow else ""
            lines.append(
                f"  host {index}: {host.steps:,} steps of {host.step_ms:,.1f} ms, waited "
                f"{host.waited_ms:,.1f} ms{mark}"
            )
        return "\n".join(lines)

    __repr__ = __str__

    @property
    def _verdict(self) -> str:
        if not any(host.steps for host in self.hosts):
            return "no steps since the last look"
        if not self.slow:
            waiting = any(host.waited_ms > WAITS * host.step_ms for host in self.hosts)
            return "all hosts wait for their data alike" if waiting else "no host waits for data"
        names = ", ".join(map(str, self.slow))
        if self.changes:
            return (
                f"host {names} is slow now, and others were before: the data of all hosts are made "
                "too slowly"
            )
        return f"host {names} is slow: all others wait for it in every step"


def fleet(loader: Loader) -> Fleet:
    """Which host holds the others up, since the last look at this loader.

    Every process must call it, with its own loader, at the same step: it exchanges a few numbers.

    >>> from loaderx import DataLoader, Dataset
    >>> loader = DataLoader(Dataset.range(100).batch(10), engine="inline")
    >>> batches = list(loader)
    >>> fleet(loader).hosts[0].steps
    10

    Args:
        loader: that of this process.
    """
    if not hasattr(type(loader), "_totals"):
        raise ArgumentTypeError(f"`fleet` takes a DataLoader, got {loader!r}.")
    counted = np.array(loader._totals())
    looks = _looks.setdefault(loader, _Looks())
    since = (counted - looks.counted).astype(np.float32)  # JAX may have no float64
    looks.counted = counted
    hosts = tuple(
        Host(int(steps), _ms(seconds, steps), _ms(waited, steps))
        for steps, seconds, waited in _gathered(since)
    )
    slow = _slow(hosts)
    changes = bool(slow) and any(before != slow for before in looks.slow if before)
    looks.slow = [*looks.slow[-KEPT:], slow]
    return Fleet(hosts, slow, changes)


class _Looks:
    """What earlier looks at a loader found."""

    def __init__(self) -> None:
        self.counted = np.zeros(3)
        self.slow: list[tuple[int, ...]] = []


_looks: weakref.WeakKeyDictionary[Any, _Looks] = weakref.WeakKeyDictionary()


def _gathered(numbers: Any) -> list[list[float]]:
    """These numbers of all processes."""
    if jax.process_count() == 1:
        rows: list[list[float]] = [numbers.tolist()]
        return rows
    from jax.experimental.multihost_utils import process_allgather  # late: rarely needed

    rows = np.asarray(process_allgather(numbers)).tolist()
    return rows


def _ms(seconds: float, steps: float) -> float:
    return seconds * 1e3 / steps if steps else 0.0


def _slow(hosts: tuple[Host, ...]) -> tuple[int, ...]:
    """Hosts that wait for data, and far longer than the usual one."""
    usual = float(np.median([host.waited_ms for host in hosts]))
    if len(hosts) == 2:  # the median of two is between them
        usual = min(host.waited_ms for host in hosts)
    return tuple(
        index
        for index, host in enumerate(hosts)
        if len(hosts) > 1
        and host.waited_ms > WAITS * host.step_ms
        and host.waited_ms > APART * usual
    )
