"""Programs that train, each with one planted reason to be slow, and some without any.

They sleep rather than work where they can, so that a busy machine changes little.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from loaderx import DataLoader, Dataset
from loaderx.engines import Processes, Threads

UNIT_S = 0.01
ROWS = 4096


@dataclass
class Program:
    """A loader, and what a step does with a batch."""

    loader: DataLoader[Any]
    step: Callable[[Any], object]
    cause: str  # of the first cause; "" for a healthy program
    loops: int = 1_000_000

    def run(self) -> None:
        with self.loader:
            for _ in range(self.loops):
                for batch in self.loader:
                    self.step(batch)


def rows() -> Dataset[Any]:
    return Dataset.from_arrays(x=np.arange(ROWS * 4, dtype=np.float32).reshape(ROWS, 4))


def device_step(units: float = 1.0) -> Callable[[Any], object]:
    """A step that takes its time on a device."""
    return lambda batch: time.sleep(units * UNIT_S)


def work(seconds: float) -> None:
    """Holds the GIL for about so long, if nobody else uses the CPU."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(200))


# Functions ----------------------------------------------------------------------------------------


def sleepy_record(record: Any) -> Any:
    time.sleep(UNIT_S / 4)
    return record


def sleepier_record(record: Any) -> Any:
    time.sleep(2 * UNIT_S)
    return record


def sleepy_batch(batch: Any) -> Any:
    time.sleep(2 * UNIT_S)
    return batch


def sleepy_draw(record: Any, rng: Any) -> Any:
    time.sleep(UNIT_S / 4)
    return {"x": record["x"] + rng.random()}


def sleepy_filter(record: Any) -> bool:
    time.sleep(UNIT_S / 4)
    return bool(record["x"][0] % 8 == 0)


def busy_record(record: Any) -> Any:
    work(UNIT_S / 4)
    return record


def sleepy_collate(records: Any) -> Any:
    time.sleep(2 * UNIT_S)
    return {"x": np.stack([record["x"] for record in records])}


def uneven(record: Any) -> Any:
    if record["x"][0] % 1024 == 0:  # one record in 256
        time.sleep(40 * UNIT_S)
    return record


class SlowUnpickling:
    def __reduce__(self) -> Any:
        return _unpickled, ()


def _unpickled() -> SlowUnpickling:
    time.sleep(2 * UNIT_S)
    return SlowUnpickling()


def with_object(batch: Any) -> Any:
    return {**batch, "object": SlowUnpickling()}


# Sources ------------------------------------------------------------------------------------------


class SleepySource:
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        time.sleep(UNIT_S / 4)
        return {"x": np.float32(index)}


class SlowOnce(SleepySource):
    def __init__(self) -> None:
        self.is_open = False

    def __getitem__(self, index: int) -> Any:
        if not self.is_open:
            time.sleep(3.0)
            self.is_open = True
        return {"x": np.float32(index)}


class ColdFile(SleepySource):
    """Reads a file that is never in the page cache."""

    def __init__(self) -> None:
        self._file = tempfile.NamedTemporaryFile(dir=os.getcwd())  # noqa: SIM115
        self._file.write(os.urandom(1 << 20) * 64)
        self._file.flush()
        os.fsync(self._file.fileno())

    def __getitem__(self, index: int) -> Any:
        size, descriptor = 1 << 20, self._file.fileno()
        start = index % 64 * size
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return {"x": np.frombuffer(os.pread(descriptor, size, start), np.uint8)[:4].copy()}


# Programs with a planted cause --------------------------------------------------------------------


def function_that_waits() -> Program:
    loader = DataLoader(rows().map(sleepy_record).batch(8), engine="inline")
    return Program(loader, device_step(), "function")


def function_of_batches() -> Program:
    loader = DataLoader(rows().batch(8).map(sleepy_batch), engine=Threads(1))
    return Program(loader, device_step(), "function")


def function_with_draws() -> Program:
    loader = DataLoader(rows().random_map(sleepy_draw).batch(8), engine=Threads(1))
    return Program(loader, device_step(), "function")


def function_in_a_process() -> Program:
    loader = DataLoader(rows().map(sleepy_record).batch(8), engine=Processes(1))
    return Program(loader, device_step(), "function")


def function_of_a_stream() -> Program:
    chain = rows().repeat().filter(sleepy_filter).batch(4)
    return Program(DataLoader(chain, engine=Threads(1)), device_step(), "function")


def function_and_devices() -> Program:
    import jax

    chain = rows().map(sleepy_record).batch(8)
    loader = DataLoader(chain, engine="inline", sharding=jax.devices()[0])
    return Program(loader, device_step(), "function")


def function_that_works() -> Program:
    loader = DataLoader(rows().map(busy_record).batch(8), engine="inline")
    return Program(loader, device_step(), "function")


def collating() -> Program:
    loader = DataLoader(rows().batch(8, collate_fn=sleepy_collate), engine="inline")
    return Program(loader, device_step(), "batch")


def source_that_waits() -> Program:
    loader = DataLoader(Dataset.from_source(SleepySource()).batch(8), engine="inline")
    return Program(loader, device_step(), "source")


def source_with_threads() -> Program:
    chain = Dataset.from_source(SleepySource(), thread_safe=True).batch(16)
    return Program(DataLoader(chain, engine=Threads(2)), device_step(), "source")


def uneven_records() -> Program:
    chain = rows().map(uneven).batch(16)
    return Program(DataLoader(chain, engine=Threads(1)), device_step(0.5), "uneven records")


def start_of_epochs() -> Program:
    """Each epoch has 8 steps; the workers keep up with the steps, but not at the beginning."""
    chain = rows().take(32).map(sleepier_record).batch(4)
    return Program(DataLoader(chain, engine=Threads(12)), device_step(1.5), "epoch start")


def first_batch() -> Program:
    loader = DataLoader(Dataset.from_source(SlowOnce()).batch(8), engine="inline")
    return Program(loader, device_step(), "first batch")


def transport() -> Program:
    loader = DataLoader(rows().batch(8).map(with_object), engine=Processes(1))
    return Program(loader, device_step(0.2), "transport")


def compilation() -> Program:
    import jax

    @jax.jit
    def step(x: Any) -> Any:
        return (x * 2).sum()

    chain = rows().batch(1).map_with_index(lambda i, batch: {"x": np.ones(int(i) + 1, np.float32)})
    return Program(
        DataLoader(chain, engine="inline"), lambda batch: step(batch["x"]), "compilation"
    )


def placement() -> Program:
    """Batches of 32 MB that JAX has to copy, since they are not aligned."""
    import jax

    def unaligned(batch: Any) -> Any:
        return {"x": _BIG[1:].view(np.float32)}

    loader = DataLoader(rows().batch(8).map(unaligned), engine="inline", sharding=jax.devices()[0])
    return Program(loader, device_step(0.2), "placement")


_BIG = np.zeros((32 << 20) + 1, np.uint8)


def waiting_for_a_device() -> Program:
    loader = DataLoader(rows().batch(8), engine="inline")
    return Program(loader, device_step(3.0), "device")


def the_gil() -> Program:
    loader = DataLoader(rows().map(busy_record).batch(8), engine=Threads(2))
    return Program(loader, device_step(0.1), "GIL")


def a_cold_disk() -> Program:
    loader = DataLoader(Dataset.from_source(ColdFile()).batch(16), engine="inline")
    return Program(loader, device_step(0.1), "disk")


@contextlib.contextmanager
def burners(count: int) -> Any:
    """Programs that use the CPUs."""
    import subprocess
    import sys

    made = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for one in made:
            one.kill()
            one.wait()


class Contended(Program):
    def run(self) -> None:
        with burners(3 * (os.cpu_count() or 1)):
            super().run()


def a_busy_machine() -> Program:
    loader = DataLoader(rows().map(busy_record).batch(8), engine="inline")
    return Contended(loader, device_step(0.5), "contended CPU")


# Healthy programs ---------------------------------------------------------------------------------


def arrays() -> Program:
    return Program(
        DataLoader(rows().shuffle(seed=0).batch(32), engine="inline"), device_step(3), ""
    )


def threads_that_keep_up() -> Program:
    chain = rows().map(sleepy_record).batch(4).repeat()
    return Program(DataLoader(chain, engine=Threads(4)), device_step(3), "")


def processes_that_keep_up() -> Program:
    chain = rows().map(sleepy_record).batch(4).repeat()
    return Program(DataLoader(chain, engine=Processes(2)), device_step(3), "")


def a_stream_that_keeps_up() -> Program:
    chain = rows().repeat().filter(lambda record: record["x"][0] % 8 == 0).batch(8)
    return Program(DataLoader(chain, engine=Threads(2)), device_step(3), "")


def batches_on_a_device() -> Program:
    import jax

    loader = DataLoader(rows().batch(32), engine="inline", sharding=jax.devices()[0])
    return Program(loader, device_step(3), "")


STEADY = [
    function_that_waits, function_of_batches, function_with_draws, function_in_a_process,
    function_of_a_stream, function_and_devices, function_that_works, collating, source_that_waits,
    source_with_threads, uneven_records, start_of_epochs, first_batch, transport, compilation,
    waiting_for_a_device,
]  # fmt: skip
"""Programs whose cause can be found on a busy machine, too."""

NEED_A_MACHINE = [placement, the_gil, a_cold_disk, a_busy_machine]
HEALTHY = [
    arrays, threads_that_keep_up, processes_that_keep_up, a_stream_that_keeps_up,
    batches_on_a_device,
]  # fmt: skip
