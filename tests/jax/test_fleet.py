"""`loaderx.jax.fleet`: which host holds the others up.  Several processes: see `test_hosts.py`."""

from __future__ import annotations

import pytest

from loaderx import ArgumentTypeError, DataLoader, Dataset
from loaderx.jax import Fleet, Host, fleet


def test_one_process_has_nobody_to_wait_for():
    loader = DataLoader(Dataset.range(100).batch(10), engine="inline")
    assert str(fleet(loader)).startswith("no steps since the last look")
    list(loader)
    found = fleet(loader)
    assert [host.steps for host in found.hosts] == [10]
    assert (found.slow, found.changes) == ((), False)
    assert fleet(loader).hosts[0].steps == 0


def test_it_takes_a_loader():
    with pytest.raises(ArgumentTypeError, match="`fleet` takes a DataLoader, got 3"):
        fleet(3)


HOSTS = (Host(100, 52.0, 0.5), Host(100, 52.0, 30.0))


def test_what_it_says():
    assert str(Fleet(HOSTS, (1,), changes=False)) == (
        "host 1 is slow: all others wait for it in every step\n"
        "  host 0: 100 steps of 52.0 ms, waited 0.5 ms\n"
        "  host 1: 100 steps of 52.0 ms, waited 30.0 ms  slow"
    )
    changing = str(Fleet(HOSTS, (1,), changes=True))
    assert changing.startswith("host 1 is slow now, and others were before: the data of all hosts")
    assert str(Fleet(HOSTS[:1], (), changes=False)).startswith("no host waits for data")
    alike = str(Fleet(HOSTS[1:] * 2, (), changes=False))
    assert alike.startswith("all hosts wait for their data alike")


def test_statistics_that_begin_anew_change_nothing():
    loader = DataLoader(Dataset.range(100).batch(10).repeat(), engine="inline")
    batches, taken = iter(loader), []
    for steps, reset in ((7, True), (5, False), (3, True), (2, True)):
        for _ in range(steps):
            next(batches)
        if reset:
            taken.append(loader.stats(reset=True))
    (host,) = fleet(loader).hosts
    assert host.steps == 17 == sum(stats.batches for stats in taken)
    assert host.step_ms * 17 == pytest.approx(1e3 * sum(stats.seconds for stats in taken))
    next(batches)
    assert fleet(loader).hosts[0].steps == 1


class Counted:
    """A loader that has taken many steps."""

    steps = 1 << 25

    def _totals(self):
        return float(self.steps), self.steps * 0.25, self.steps * 0.125


def test_long_runs_lose_no_steps():
    """float32 has no odd numbers above 2**24."""
    loader = Counted()
    fleet(loader)
    loader.steps += 3
    (host,) = fleet(loader).hosts
    assert (host.steps, host.step_ms, host.waited_ms) == (3, 250.0, 125.0)
