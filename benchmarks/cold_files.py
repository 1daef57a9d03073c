"""Files that are not in the page cache: the first epoch of shuffled batches, in seconds.

    python benchmarks/cold_files.py [--megabytes N] [--rounds N] [--folder DIR]

Rows of 4 KB in one ``.npy`` file.  Before each measurement the kernel is asked to forget the file;
each is a process of its own.  `numpy` indexes the mapped array in the same order, so the kernel
reads ahead as it sees fit; `in sequence` reads the file once from beginning to end, which no
shuffled epoch can beat.  A disk with a budget of requests gives other figures when the budget is
used up, so rounds go through all contenders in turn.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from loaderx import DataLoader, Dataset

BATCH, ROW = 256, 1024  # rows, float32 numbers a row


def write(path: Path, megabytes: int) -> None:
    rows = megabytes * 2**20 // (4 * ROW)
    np.save(path, np.random.default_rng(0).random((rows, ROW), np.float32))


def forget(path: Path) -> None:
    """Takes a file out of the page cache."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def by_loaderx(path: Path) -> None:
    with DataLoader(Dataset.open(path).shuffle(0).batch(BATCH), engine="inline") as loader:
        for batch in loader:
            batch["rows"].sum()


def by_numpy(path: Path) -> None:
    mapped = np.load(path, mmap_mode="r")
    order = np.random.default_rng(0).permutation(len(mapped))
    for start in range(0, len(order), BATCH):
        mapped[order[start : start + BATCH]].sum()


def in_sequence(path: Path) -> None:
    mapped = np.load(path, mmap_mode="r")
    for start in range(0, len(mapped), BATCH):
        mapped[start : start + BATCH].sum()


CONTENDERS = {"loaderx": by_loaderx, "numpy": by_numpy, "in sequence": in_sequence}


def measure(name: str, path: Path) -> None:
    forget(path)
    begun = perf_counter()
    CONTENDERS[name](path)
    read = resource.getrusage(resource.RUSAGE_SELF).ru_inblock * 512
    print(perf_counter() - begun, read / path.stat().st_size)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="on the disk to be measured")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure[0], Path(options.measure[1]))
        return
    found: dict[str, list[list[float]]] = {name: [] for name in CONTENDERS}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder, "rows.npy")
        write(path, options.megabytes)
        for _ in range(options.rounds):
            for name in CONTENDERS:
                command = [sys.executable, __file__, "--measure", name, str(path)]
                text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                found[name].append([float(word) for word in text.split()])
    print(f"{options.megabytes} MB in rows of {4 * ROW} bytes, batches of {BATCH}")
    for name, results in found.items():
        seconds, share = (median(column) for column in zip(*results, strict=True))
        every = ", ".join(f"{one[0]:.2f}" for one in results)
        print(f"{name:12} {seconds:7.2f} s ({every}), {share:.2f} of the file read from disk")


if __name__ == "__main__":
    main()
