"""A loader in each worker of Ray Train; the run goes on with another number of workers.

    python examples/ray_train.py [--address HOST:PORT] [--workers 2 3 1] [--steps 6]

Each number is a phase: `ray.train`'s JaxTrainer with so many workers, each with a loader of its
own, `DataLoader(data, shard=(rank, workers))`.  A worker loads its own rows of every global batch.
Rank 0 saves the position with the checkpoint, and the next phase restores it: a position says
nothing of workers.  At the end, the rows that all phases have seen are compared with those of one
plain loader.  Needs `pip install 'ray[train]'` beside loaderx and JAX.  It runs on CPUs; on GPUs or
TPUs set `ScalingConfig(use_gpu=True)` or `use_tpu=True`, and give the loader `sharding=` instead of
`shard=`, as in docs/jax.md.

With --address, or RAY_ADDRESS, --folder must be one that all machines see.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import ray.train
from ray.train import CheckpointConfig, RunConfig, ScalingConfig

from loaderx import DataLoader, Dataset
from loaderx.demo import DIGITS

BATCH = 60  # the global batch: any number of workers that divides it will do


def training_data() -> Dataset[Any]:
    """Endless batches of digits."""
    return Dataset.open(DIGITS).shuffle(seed=0).batch(BATCH, drop_remainder=True).repeat()


def train_on_worker(config: dict[str, Any]) -> None:
    """What every worker of Ray Train runs."""
    context = ray.train.get_context()
    rank, workers = context.get_world_rank(), context.get_world_size()
    with DataLoader[Any](training_data(), shard=(rank, workers)) as loader:
        stream = iter(loader)
        if config["checkpoint"] is not None:
            with config["checkpoint"].as_directory() as folder:
                stream.set_state(json.loads(Path(folder, "loader.json").read_text()))
        first = stream.step
        # A step of training stands in the place of `row_sums`.
        sums = [row_sums(batch) for batch in islice(stream, config["steps"])]
        state = stream.get_state()
    seen = Path(config["folder"], f"seen-{first}-{rank}.npy")
    np.save(seen, np.array(sums))
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if rank == 0:  # every worker has the same position
            Path(folder, "loader.json").write_text(json.dumps(state))
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({"step": state["step"]}, checkpoint=checkpoint)


def row_sums(batch: Any) -> Any:
    """A number for each row, which depends on every pixel and on the label."""
    pixels = batch["image"].reshape(len(batch["label"]), -1).astype(np.int64)
    return (pixels * np.arange(1, pixels.shape[1] + 1)).sum(1) * 10 + batch["label"]


def run(folder: Path, phases: list[int], steps: int) -> None:
    """Trains in phases, and compares what they saw with what one loader gives."""
    from ray.train.v2.jax import JaxTrainer

    checkpoint, parts = None, []
    for number, workers in enumerate(phases):
        trainer = JaxTrainer(
            train_on_worker,
            train_loop_config={"steps": steps, "folder": str(folder), "checkpoint": checkpoint},
            scaling_config=ScalingConfig(
                num_workers=workers,
                resources_per_worker={"CPU": 0.5},  # small, for this example
            ),
            run_config=RunConfig(
                name=f"phase-{number}",
                storage_path=str(folder),
                checkpoint_config=CheckpointConfig(num_to_keep=1),
            ),
        )
        checkpoint = trainer.fit().checkpoint
        first = number * steps
        seen = [np.load(folder / f"seen-{first}-{rank}.npy") for rank in range(workers)]
        parts.append(np.concatenate(seen, 1))  # the rows of a batch, in the order of the ranks
        print(f"{workers} workers: batches {first} to {first + steps - 1}", flush=True)
    expected = [row_sums(batch) for batch in islice(training_data(), steps * len(phases))]
    assert np.array_equal(np.concatenate(parts), np.array(expected))
    print("the same rows as one loader, in the same order: yes")


def main(arguments: list[str] | None = None) -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="Trains on workers of Ray Train, in phases.")
    parser.add_argument("--address", help="of a Ray cluster; by default Ray runs here")
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 3, 1], metavar="N")
    parser.add_argument("--steps", type=int, default=6, help="per phase")
    parser.add_argument("--folder", type=Path, help="for checkpoints; a temporary one by default")
    options = parser.parse_args(arguments)
    os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")  # for versions of Ray before 2.51
    ray.init(address=options.address, logging_level="ERROR", log_to_driver=False)
    if options.folder:
        run(options.folder.resolve(), options.workers, options.steps)
    else:
        with tempfile.TemporaryDirectory(prefix="loaderx-ray-") as folder:
            run(Path(folder), options.workers, options.steps)


if __name__ == "__main__":
    main()
