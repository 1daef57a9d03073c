"""Feeding devices: is a step kept waiting, what does placing cost, and does it train as well?

    python benchmarks/devices.py [--quick] [--only NAME ...] [--data DIR] [--json FILE]

The device is emulated by a step that sleeps (a `pure_callback`), so that the cores are free, as
they are beside an accelerator.  Ratios are ours by the baseline's, both in one process and in
turns: 1.0 means that ours adds nothing.  --data names a folder with IDX files; Debian's package
dataset-fashion-mnist is found by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from pathlib import Path
from statistics import mean, median
from time import perf_counter, sleep
from typing import Any

import numpy as np
from figures import Bar, Figures, Row, report, row

from loaderx import DataLoader, Dataset

FASHION = Path("/usr/share/datasets/fashion-mnist")
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


# A step that sleeps -------------------------------------------------------------------------------


def wait(seconds: float, batch: Any) -> Any:
    """Loading that waits for a disk or a network."""
    sleep(seconds)
    return batch


def compute(seconds: float, batch: Any) -> Any:
    """Loading that computes, in NumPy."""
    until = perf_counter() + seconds
    while perf_counter() < until:
        np.sort(np.arange(20_000)[::-1])
    return batch


def fed(quick: bool) -> list[Row]:
    """The time of a step that is fed, by the time of the same step with a batch at hand."""
    import jax

    step_s, steps = (0.005, 20) if quick else (0.02, 150)
    step = sleeping_step(step_s)
    rows = []
    for share in (0.5,) if quick else (0.05, 0.2, 0.5):
        for load in (wait, compute):
            x = np.zeros((2048, 768), np.float32)
            dataset = Dataset.from_arrays(x=x).shuffle(seed=0).batch(256)
            dataset = dataset.map(partial(load, share * step_s)).repeat()
            at_hand = jax.device_put(dataset[0], jax.devices()[0])
            ratios, from_start, engine = [], [], ""
            for _ in range(1 if quick else 3):
                bare = step_times(step, repeat(at_hand), steps)
                with DataLoader[Any](dataset, sharding=jax.devices()[0]) as loader:
                    times = step_times(step, iter(loader), steps)
                    engine = loader.stats().engine
                ratios.append(mean(times[steps // 3 :]) / mean(bare))
                from_start.append(mean(times) / mean(bare))
            note = (
                f"step {step_s * 1e3:.0f} ms, loading {share:.0%} of it; engine {engine}; with the "
                f"first {steps // 3} of {steps} steps, where it finds its engine: "
                f"{median(from_start):.3f}x"
            )
            name = f"fed_{load.__name__}_{round(share * 100)}"
            rows.append(row(name, Bar("<=", 1.03), median(ratios), ratios, note))
    return rows


def sleeping_step(seconds: float) -> Callable[[Any, Any], Any]:
    import jax
    import jax.numpy as jnp

    def device(total: Any, x: Any) -> Any:
        sleep(seconds)
        return np.float32(total)

    @jax.jit
    def step(total: Any, batch: Any) -> Any:
        return jax.pure_callback(device, jax.ShapeDtypeStruct((), jnp.float32), total, batch["x"])

    return step


def step_times(step: Callable[[Any, Any], Any], batches: Iterator[Any], count: int) -> list[float]:
    """From one step's end to the next one's; each step is waited for, as in a loop that logs."""
    total = step(np.float32(0), next(batches)).block_until_ready()
    times = []
    last = perf_counter()
    for _ in range(count):
        total = step(total, next(batches)).block_until_ready()
        now = perf_counter()
        times.append(now - last)
        last = now
    return times


# What placing costs -------------------------------------------------------------------------------


def placing(quick: bool) -> list[Row]:
    """3 MB on one device and on eight, each in a process of its own."""
    rows = []
    for devices in (1, 8):
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        }
        command = [sys.executable, __file__, "--placing", *(["--quick"] if quick else [])]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1])
        for name, (ratios, ours, bare) in json.loads(done.stdout).items():
            note = f"{ours:.0f} us, bare {bare:.0f} us"
            rows.append(
                row(f"{name}_{devices}", Bar("<=", 1.2), median(ratios), ratios, note),
            )
    return rows


def measure_placing(quick: bool) -> dict[str, Any]:
    """Placing one aligned batch again and again; and a loader, against doing it by hand."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from loaderx.jax.placement import Placement
    from loaderx.memory import aligned

    devices = jax.devices()
    sharding: Any = devices[0]
    if len(devices) > 1:
        sharding = NamedSharding(Mesh(np.array(devices), ("data",)), PartitionSpec("data"))
    rounds, count = (2, 5) if quick else (15, 100)
    x = np.zeros((8192, 768), np.float32)
    batch = {"x": aligned(x[:1024])}
    placement = Placement(sharding)
    dataset = Dataset.from_arrays(x=x).shuffle(seed=0).batch(1024).repeat()
    with_sharding = iter(DataLoader[Any](dataset, sharding=sharding))
    by_hand = iter(DataLoader[Any](dataset))
    pairs = {
        "placing": (lambda: placement.place(batch), lambda: jax.device_put(batch, sharding)),
        "loading_and_placing": (
            lambda: next(with_sharding),
            lambda: jax.device_put(next(by_hand), sharding),
        ),
    }
    return {name: compare(*pair, rounds, count) for name, pair in pairs.items()}


def compare(
    ours: Callable[[], Any], bare: Callable[[], Any], rounds: int, count: int
) -> tuple[list[float], float, float]:
    """Ratios of the rounds, and the median microseconds of each side."""
    import jax

    times: dict[Any, list[float]] = {ours: [], bare: []}
    for number in range(rounds + 1):
        for side in (ours, bare) if number % 2 else (bare, ours):
            begun = perf_counter()
            for _ in range(count):
                placed = side()
            jax.block_until_ready(placed)
            if number:  # the first round is a warm-up
                times[side].append((perf_counter() - begun) / count * 1e6)
    ratios = [own / other for own, other in zip(times[ours], times[bare], strict=True)]
    return ratios, median(times[ours]), median(times[bare])


# Training -----------------------------------------------------------------------------------------


def mlp(quick: bool, folder: Path | None) -> list[Row]:
    """examples/mlp.py against a loop by hand: accuracy, and time lost to data."""
    import jax

    sys.path.insert(0, str(EXAMPLES))
    import mlp as example

    accuracy, waiting = Bar("<=", 0.5, "points"), Bar("<", 3, "%")
    if folder is None and not quick:
        missing = "no data: install dataset-fashion-mnist, or give --data DIR"
        return [
            Row("mlp_accuracy", str(accuracy), "skipped", missing),
            Row("mlp_data_wait", str(waiting), "skipped", missing),
        ]
    train, test = example.read(None if quick else folder)
    epochs, seeds, rate, batch = (1, 1, 0.1, 128) if quick else (8, 3, 0.01, 128)
    whole = train.batch(len(train))[0]
    device = jax.devices()[0]

    def by_hand(seed: int, epoch: int) -> Iterator[Any]:
        order = np.random.default_rng([seed, epoch]).permutation(len(train))
        for start in range(0, len(train) - batch + 1, batch):
            ix = order[start : start + batch]
            yield {name: leaf[ix] for name, leaf in whole.items()}

    scores: dict[str, list[float]] = {"ours": [], "by hand": []}
    for seed in range(seeds):
        shuffled = train.shuffle(seed=seed).batch(batch, drop_remainder=True)
        with DataLoader[Any](shuffled, sharding=device) as loader:
            for name, found in scores.items():
                weights = example.first_weights(train, seed)
                late = []
                for epoch in range(epochs):
                    batches = loader.epoch(epoch) if name == "ours" else by_hand(seed, epoch)
                    weights = example.train_epoch(weights, batches, rate)
                    if epoch >= epochs // 2:  # it moves up and down by a point from one to the next
                        late.append(100 * example.accuracy(weights, test))
                found.append(mean(late))
    differences = [a - b for a, b in zip(scores["ours"], scores["by hand"], strict=True)]
    said = ", ".join(f"{name} {mean(values):.1f} %" for name, values in scores.items())
    difference = abs(mean(differences))
    note = f"mean of {seeds} seeds and the second half of {epochs} epochs: {said}"
    rows = [row("mlp_accuracy", accuracy, difference, differences, note)]
    for name, sharding in (("mlp_data_wait", None), ("mlp_data_wait_placed", device)):
        waited = data_wait(example, train, batch, rate, sharding, rounds=1 if quick else 5)
        rows.append(row(name, waiting, *waited))
    return rows


def data_wait(
    example: Any, train: Dataset[Any], batch: int, rate: float, sharding: Any, rounds: int
) -> tuple[float, list[float], str]:
    """The share of an epoch spent in `next`, where the loop waits for every step.

    Without a sharding, as in the example, the jitted step is called with NumPy batches.
    """
    import jax

    shuffled = train.shuffle(seed=0).batch(batch, drop_remainder=True)
    weights = example.first_weights(train)
    at_hand = shuffled[0] if sharding is None else jax.device_put(shuffled[0], sharding)
    weights = example.train_epoch(weights, [at_hand], rate)
    waited, longer = [], []
    with DataLoader[Any](shuffled, sharding=sharding) as loader:
        for epoch in range(rounds + 1):
            before, begun = loader.stats().waited_s, perf_counter()
            for one in loader.epoch(epoch):
                weights = jax.block_until_ready(example.train_step(weights, one, rate))
            fed_s, waited_s = perf_counter() - begun, loader.stats().waited_s - before
            begun = perf_counter()
            for _ in range(len(shuffled)):
                weights = jax.block_until_ready(example.train_step(weights, at_hand, rate))
            bare_s = perf_counter() - begun
            if epoch:  # the first epoch is a warm-up
                waited.append(100 * waited_s / fed_s)
                longer.append(100 * (fed_s - bare_s) / fed_s)
        engine = loader.stats().engine
    note = (
        f"of {fed_s:.2f} s per epoch, {fed_s / len(shuffled) * 1e3:.1f} ms per step; engine "
        f"{engine}; against an epoch on one batch at hand: {median(longer):+.1f} %"
    )
    waited = waited or [0.0]
    return median(waited), waited, note


# The script ---------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures what it takes to feed devices.")
    parser.add_argument("--quick", action="store_true", help="small and rough: does it still run?")
    parser.add_argument("--only", nargs="+", choices=("fed", "placing", "mlp"), metavar="NAME")
    parser.add_argument("--data", type=Path, metavar="DIR", help="IDX files for the MLP")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON as well")
    parser.add_argument("--placing", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.placing:
        print(json.dumps(measure_placing(options.quick)))
        return
    folder = options.data or (FASHION if FASHION.is_dir() else None)
    figures: Figures = {
        "fed": fed,
        "placing": placing,
        "mlp": lambda quick: mlp(quick, folder),
    }
    report(figures, options.only, options.quick, options.json)


if __name__ == "__main__":
    main()
