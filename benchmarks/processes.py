"""The figures of worker processes, each against its bar.

    python benchmarks/processes.py [--quick] [--only NAME ...] [--json FILE]

Workers are started and warm before a clock runs, except where starting is what is measured.  A
round is one epoch: nothing has been prefetched when it begins.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import resource
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import jax
import numpy as np
from figures import (
    Bar,
    Batches,
    Figures,
    Row,
    Side,
    compare,
    main,
    milliseconds_fresh,
    row,
    skipped,
)

from loaderx import DataLoader, Dataset
from loaderx.engines import Processes
from loaderx.loader.tasks.shared_steps import StepTimes

ROUNDS = 9


def epochs_of(loader: DataLoader[Any]) -> Side:
    """One epoch after the other of a loader that is running already."""
    numbers = itertools.count()
    return lambda: loader.epoch(next(numbers))


# Transport ----------------------------------------------------------------------------------------


def transport(quick: bool) -> list[Row]:
    """8 MB batches gathered by one worker, nothing else done."""
    rows, batch = (2048, 256) if quick else (32_768, 1024)
    x = np.random.default_rng(0).integers(0, 255, (rows, 8192), dtype=np.uint8)
    rounds = 2 if quick else 2 * ROUNDS
    dataset = Dataset.from_arrays(x=x).shuffle(seed=0).batch(batch)
    records = rows
    by_hand, torch_bar = Bar(">=", 0.7), Bar(">=", 5.0)
    with DataLoader(dataset, engine=Processes(1)) as loader:
        ours = epochs_of(loader)
        out = np.empty((batch, 8192), np.uint8)

        def take() -> Iterator[Any]:
            rng = np.random.default_rng(1)
            order = rng.permutation(rows)
            for start in range(0, rows, batch):
                x.take(order[start : start + batch], 0, out, "clip")
                yield {"x": out}

        found = [compare(ours, take, rounds).row("transport_take", by_hand, records)]
        try:
            theirs = torch_batches(x, batch)
        except ImportError as missing:
            return [*found, skipped("transport_torch", torch_bar, missing)]
        found.append(compare(ours, theirs, rounds).row("transport_torch", torch_bar, records))
    return found


def torch_batches(x: np.ndarray[Any, Any], batch: int) -> Side:
    """torch at its best: tensors, which the default collate stacks in shared memory at once.

    A whole batch from ``__getitems__`` has to be copied there afterwards, and takes twice as long.
    """
    import torch

    class Rows(torch.utils.data.Dataset):  # type: ignore[misc]
        def __init__(self) -> None:
            self.x = torch.from_numpy(x)

        def __len__(self) -> int:
            return len(x)

        def __getitem__(self, index: int) -> Any:
            return {"x": self.x[index]}

    loader = torch.utils.data.DataLoader(
        Rows(),
        batch_size=batch,
        shuffle=True,
        num_workers=1,
        persistent_workers=True,
    )

    def batches() -> Batches:
        for one in loader:
            yield {"x": one["x"].numpy()}

    return batches


def small(quick: bool) -> list[Row]:
    """0.1 MB batches: the price of a hand-over."""
    x = np.zeros((20_000, 1024), np.uint8)
    with DataLoader(Dataset.from_arrays(x=x).shuffle(0).batch(100), engine=Processes(1)) as loader:
        ours = epochs_of(loader)
        list(ours())
        took = []
        for _ in range(2 if quick else ROUNDS):
            begun = perf_counter()
            count = sum(1 for _ in ours())
            took.append((perf_counter() - begun) / count * 1e6)
    return [row("small_batch_us", Bar("<", 150, "us"), median(took), took)]


# Python that holds the GIL ------------------------------------------------------------------------

BURN = """
def burn(record, turns={turns}):
    total = 0
    for number in range(turns):
        total += number
    return record
"""
BARE = (
    BURN
    + """
import sys
for line in sys.stdin:
    for record in range(int(line)):
        burn(record)
    print("done", flush=True)
"""
)


def turns_for(seconds: float) -> int:
    """How many turns of the loop take so long on this machine, now."""
    space: dict[str, Any] = {}
    exec(BURN.format(turns=0), space)
    times = []
    for _ in range(20):
        begun = perf_counter()
        space["burn"](0, 100_000)
        times.append(perf_counter() - begun)
    return round(100_000 * seconds / median(times))


class BareProcesses:
    """Two processes that do half of the work each, and nothing else."""

    def __init__(self, turns: int) -> None:
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", BARE.format(turns=turns)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]

    def run(self, records: int) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(f"{records // 2}\n")
            process.stdin.flush()
        for process in self.processes:
            assert process.stdout is not None
            process.stdout.readline()

    def close(self) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


def gil(quick: bool) -> list[Row]:
    """2 ms of pure Python per record, two workers; chosen by hand, and by `auto`."""
    turns, batch, batches = turns_for(2e-3), 4, 16 if quick else 120
    records = batch * batches
    space: dict[str, Any] = {}
    exec(BURN.format(turns=turns), space)
    dataset = Dataset.range(records).map(space["burn"]).batch(batch)
    bare = BareProcesses(turns)
    bare.run(8)
    rows, bar = [], Bar(">=", 0.93)
    try:
        for name, engine in (("gil_two_workers", Processes(2)), ("gil_auto", "auto")):
            # `auto` measures over many epochs; the others are endless for its sake.
            with DataLoader(dataset.repeat(), engine=engine) as loader:
                note = get_going(loader, quick) if engine == "auto" else ""
                ours = epochs_of(loader)
                list(ours())
                ratios = []
                for number in range(2 if quick else ROUNDS):
                    times = {}
                    for side in ("ours", "bare")[:: 1 if number % 2 else -1]:
                        begun = perf_counter()
                        if side == "ours":
                            for _ in ours():
                                pass
                        else:
                            bare.run(records)
                        times[side] = perf_counter() - begun
                    ratios.append(times["bare"] / times["ours"])
                note = note or f"engine {loader.stats().engine}"
            rows.append(row(name, bar, median(ratios), ratios, note))
    finally:
        bare.close()
    return rows


def get_going(loader: DataLoader[Any], quick: bool) -> str:
    """Runs `auto` until it has chosen, and says what and when."""
    begun = perf_counter()
    stream = iter(loader)
    while not loader.stats().engine.startswith("processes"):
        next(stream)
        if perf_counter() - begun > (3 if quick else 30):
            break
    return f"engine {loader.stats().engine}, chosen after {perf_counter() - begun:.1f} s"


# Rows of one step --------------------------------------------------------------------------------

SLOW = (
    BURN
    + """
from time import sleep

def burnt(record):
    return burn(record, {turns} * (100 if record % 1024 == 333 else 1))

def slept(record):
    sleep({seconds} * (100 if record % 1024 == 333 else 1))
    return record
"""
)


def never_sharing(loader: DataLoader[Any]) -> DataLoader[Any]:
    """The loader, whose workers make whole steps."""
    iter(loader)  # makes its work
    loader._work._step_times = times = StepTimes()  # type: ignore[union-attr]
    times.can_share = False
    return loader


def shared_rows(quick: bool) -> list[Row]:
    """Batches of 1,024 records of which one takes 100 times as long, two workers.

    An epoch of one batch has nothing but ranges to give to the second worker.  With many batches
    both have enough to do, and nothing may be lost.
    """
    seconds, space = 100e-6, {}
    exec(SLOW.format(turns=turns_for(seconds), seconds=seconds), space)
    device = jax.devices()[0]
    found = []
    for name, steps, bar, sharding in (
        ("one_batch", 1, Bar(">=", 1.6), None),
        ("one_batch_placed", 1, Bar(">=", 1.6), device),
        ("three_batches", 3, Bar(">=", 1.2), None),
        ("many_batches", 16, Bar(">=", 0.95), None),
    ):
        for how in ("burnt", "slept"):
            dataset = Dataset.range(1024 * steps).map(space[how]).batch(1024)
            with (
                DataLoader(dataset, engine=Processes(2), sharding=sharding) as ours,
                DataLoader(dataset, engine=Processes(2), sharding=sharding) as other,
            ):
                whole = never_sharing(other)
                sides = compare(epochs_of(ours), epochs_of(whole), 2 if quick else ROUNDS)
                found.append(sides.row(f"shared_{name}_{how}", bar, 1024 * steps))
    return found


# Starting, memory, faults -------------------------------------------------------------------------

FIRST = """
import jax, jax.numpy as jnp, numpy as np
from loaderx import DataLoader, Dataset
jnp.ones(1000).sum().block_until_ready()
x = np.random.default_rng(0).random((10_000, 32))
loader = DataLoader(Dataset.from_arrays(x=x).map(lambda r: {"x": r["x"] * 2}).batch(128),
                    engine="processes")
"""


def first_batch(quick: bool) -> list[Row]:
    """From `iter` to the first batch, in a script that has imported and used JAX."""
    import tempfile

    bar = Bar("<=", 600, "ms")
    with tempfile.TemporaryDirectory() as compiled:
        try:
            import jax  # noqa: F401
        except ImportError as missing:
            return [skipped("first_batch_ms", bar, missing)]
        took = [
            milliseconds_fresh(FIRST, "next(iter(loader))", compiled)
            for _ in range(2 if quick else 8)
        ][1:]  # the first one compiles the bytecode
    return [row("first_batch_ms", bar, median(took), took)]


def own_pss(pid: int) -> float:
    """A worker's memory (PSS, MB) without the data and the slots that it shares."""
    text = Path(f"/proc/{pid}/smaps").read_text()
    maps = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", text, flags=re.M)
    own = (one for one in maps if "memfd:loaderx" not in one.partition("\n")[0])
    return sum(int(kb) for one in own for kb in re.findall(r"^Pss:\s+(\d+) kB", one, re.M)) / 1e3


def workers() -> list[int]:
    found: list[int] = []
    for children in Path("/proc/self/task").glob("*/children"):
        pids = children.read_text().split()
        found += [
            int(p) for p in pids if "worker_main.py" in Path(f"/proc/{p}/cmdline").read_text()
        ]
    return found


def memory(quick: bool) -> list[Row]:
    """A dataset of 1 GB in memory, four workers: what each has for itself."""
    x = np.ones((4_000 if quick else 125_000, 1000))
    with DataLoader(Dataset.from_arrays(x=x).shuffle(0).batch(500), engine=Processes(4)) as loader:
        for _ in loader:
            pass
        each = [own_pss(pid) for pid in workers()]
    note = f"{x.nbytes / 1e9:.2f} GB of data, {len(each)} workers"
    return [row("worker_pss_mb", Bar("<=", 60, "MB"), max(each), each, note)]


def draw(record: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"x": record["x"] + rng.random()}


def soak(quick: bool) -> list[Row]:
    """A random worker is killed every 200 batches."""
    batches, every = (400, 100) if quick else (20_000, 200)
    x = np.arange(batches * 4.0).reshape(-1, 1)
    dataset = Dataset.from_arrays(x=x).shuffle(0).random_map(draw).batch(4)
    chance = random.Random(0)
    wrong = kills = 0
    counts: list[tuple[int, int, int]] = []
    with warnings.catch_warnings(), DataLoader(dataset, engine=Processes(2)) as loader:
        warnings.simplefilter("ignore")
        for step, (batch, expected) in enumerate(zip(loader, dataset, strict=True)):
            wrong += not np.array_equal(batch["x"], expected["x"])
            if step % every == every // 2:
                os.kill(chance.choice(workers()), signal.SIGKILL)
                kills += 1
            if step % (10 * every) == every or step == batches - 1:
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                counts.append((len(os.listdir("/proc/self/fd")), len(workers()), peak))
    (fds, _, rss), (fds_end, alive, rss_end) = counts[0], counts[-1]
    note = (
        f"{batches:,} batches, {kills} kills; descriptors {fds} -> {fds_end}, "
        f"{alive} workers at the end, peak memory {rss / 1e3:.0f} -> {rss_end / 1e3:.0f} MB"
    )
    return [row("soak_wrong_batches", Bar("<=", 0, "batches"), wrong, [wrong], note)]


FIGURES: Figures = {
    "transport": transport,
    "small_batch_us": small,
    "gil": gil,
    "shared_rows": shared_rows,
    "first_batch_ms": first_batch,
    "worker_pss_mb": memory,
    "soak": soak,
}


if __name__ == "__main__":
    main(FIGURES, "what worker processes do")
