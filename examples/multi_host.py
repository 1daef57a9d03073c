"""Several hosts on one machine: train, save, and go on with another number of processes.

    python examples/multi_host.py --processes 4 2 1 --steps 20

Each number is a phase: so many processes with `jax.distributed`, two CPU devices each.  They
restore the last checkpoint (Orbax: weights and data position in one), train for some steps, and
save.  Each process loads its own rows of every batch only.  The batches that a phase has seen are
compared with those of a plain loader: the stream does not know how many processes there were.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from loaderx import DataLoader, Dataset
from loaderx.demo import DIGITS

BATCH = 64
PATIENCE_S = 240


def training_data() -> Dataset[Any]:
    """Endless batches of digits; 64 is the global batch."""
    return Dataset.open(DIGITS).shuffle(seed=0).batch(BATCH, drop_remainder=True).repeat()


# In each process ----------------------------------------------------------------------------------


def work(folder: Path, rank: int, count: int, port: int, steps: int) -> None:
    """Restores, trains for some steps, saves; process 0 writes down what it has seen."""
    import jax

    if count > 1:
        jax.distributed.initialize(f"localhost:{port}", count, rank, initialization_timeout=60)

    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    from orbax.checkpoint import v1 as ocp

    mesh = Mesh(np.array(jax.devices()), ("data",))
    rows, everywhere = (
        NamedSharding(mesh, PartitionSpec("data")),
        NamedSharding(mesh, PartitionSpec()),
    )

    @jax.jit
    def step(weights: Any, batch: Any) -> tuple[Any, Any, Any]:
        def loss_of(weights: Any) -> Any:
            logits = batch["image"].reshape(BATCH, -1) / 16 @ weights
            chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["label"][:, None], 1)
            return -chosen.mean()

        loss, gradient = jax.value_and_grad(loss_of)(weights)
        return weights - 0.5 * gradient, loss, checksum(batch, jnp)

    weights = jax.device_put(np.zeros((64, 10), np.float32), everywhere)
    losses, sums = [], []
    with (
        DataLoader[Any](training_data(), sharding=rows) as loader,
        ocp.training.Checkpointer(folder / "checkpoints") as checkpointer,
    ):
        stream = iter(loader)
        if checkpointer.latest is not None:
            target = {"weights": weights, "data": stream}
            weights = checkpointer.load_checkpointables(None, target)["weights"]
        first = stream.step
        for batch in islice(stream, steps):
            weights, loss, seen = step(weights, batch)
            losses.append(float(loss))
            sums.append(int(seen))
        # Taken now, written in the background, and there in one piece or not at all.
        saving = checkpointer.save_checkpointables_async(
            stream.step, {"weights": weights, "data": stream}
        )
        saving.result()
        loaded = loader.stats().records
    if rank == 0:
        seen = {"first": first, "sums": sums, "losses": losses, "loaded": loaded}
        (folder / f"seen-{first}.json").write_text(json.dumps(seen))
    if count > 1:
        jax.distributed.shutdown()


def checksum(batch: Any, numpy: Any) -> Any:
    """A number that depends on every pixel, label and place in the batch; exact, and small."""
    places = numpy.arange(1, BATCH + 1, dtype=numpy.int32)
    pixels = batch["image"].astype(numpy.int32).sum((1, 2))
    return ((pixels * 10 + batch["label"]) * places).sum()


# In the process that starts them ------------------------------------------------------------------


@contextlib.contextmanager
def ctrl_c_waits() -> Iterator[None]:
    """Ctrl-C takes effect after the block: no process is half started, and so forgotten."""
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


def run_phase(folder: Path, count: int, steps: int) -> None:
    """Runs one phase; if a process fails, or takes too long, all of them are ended."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    }
    command = [sys.executable, __file__, "--folder", str(folder), "--steps", str(steps)]
    started: list[subprocess.Popen[bytes]] = []
    try:
        with ctrl_c_waits():
            for rank in range(count):
                own = [*command, "--worker", str(rank), str(count), str(port)]
                started.append(subprocess.Popen(own, env=environment, start_new_session=True))
        until = time.monotonic() + PATIENCE_S
        while any(process.poll() is None for process in started):
            if any(process.poll() for process in started):
                raise SystemExit("a process failed; see above.")
            if time.monotonic() > until:
                raise SystemExit(f"the processes were not done after {PATIENCE_S} s.")
            time.sleep(0.05)
        if any(process.poll() for process in started):
            raise SystemExit("a process failed; see above.")
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def run(folder: Path, counts: list[int], steps: int) -> None:
    """Runs all phases and compares what they saw with what one process sees."""
    expected = [
        int(checksum(b, np)) for b in islice(DataLoader(training_data()), steps * len(counts))
    ]
    for number, count in enumerate(counts):
        run_phase(folder, count, steps)
        first = number * steps
        seen = json.loads((folder / f"seen-{first}.json").read_text())
        same = seen["sums"] == expected[first : first + steps]
        print(
            f"{count} process{'es' if count > 1 else ''}: batches {first} to {first + steps - 1}, "
            f"loss {seen['losses'][0]:.3f} to {seen['losses'][-1]:.3f}, each process loaded "
            f"{seen['loaded']} records; same batches as one process: {'yes' if same else 'NO'}",
            flush=True,
        )
        if not same:
            raise SystemExit(1)


def main(arguments: list[str] | None = None) -> None:
    """Starts the phases, or is one process of one phase."""
    parser = argparse.ArgumentParser(description="Trains on several processes on this machine.")
    parser.add_argument("--processes", type=int, nargs="+", default=[4, 2, 1], metavar="N")
    parser.add_argument("--steps", type=int, default=20, help="per phase")
    parser.add_argument("--folder", type=Path, help="for checkpoints; a temporary one by default")
    parser.add_argument("--worker", type=int, nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        work(options.folder, *options.worker, options.steps)
    elif options.folder:
        run(options.folder.resolve(), options.processes, options.steps)
    else:
        with tempfile.TemporaryDirectory(prefix="loaderx-hosts-") as folder:
            run(Path(folder), options.processes, options.steps)


if __name__ == "__main__":
    main()
