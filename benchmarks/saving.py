"""The figures of `Dataset.save`, each against its bar; read `figures.py` first for their form.

    python benchmarks/saving.py [--quick] [--only NAME ...] [--json FILE]

2 GB are saved in parts of 32 MB: 10,000 records of 200 kB, each of which takes about half a
millisecond of NumPy to make.  The ratios are the seconds with one worker process over those of

save_workers    two, and four, worker processes, which write whole parts
save_shards     two processes without workers that save a shard each
save_parts      two workers that write whole parts, over two whose columns the consumer writes

All folders must have the same bytes in all files: a digest that differs is an error.  The notes
have the seconds.  The files are synced to disk by all sides, so a slow disk hides everything else.
"""

from __future__ import annotations

import functools
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from figures import Bar, Figures, Row, main, row

from loaderx import Dataset
from loaderx.engines import Processes

PART_BYTES = 1 << 25
SHARD = (
    "import sys; sys.path.insert(0, sys.argv[1]); import saving; "
    "saving.dataset(int(sys.argv[2])).save(sys.argv[3], engine='inline', "
    "part_bytes=saving.PART_BYTES, shard=(int(sys.argv[4]), 2))"
)


def made(index: Any) -> dict[str, Any]:
    rng = np.random.default_rng(int(index))
    noise = rng.integers(0, 256, 200_000, np.uint8)
    return {"id": index, "values": np.cumsum(noise, dtype=np.uint8)}


def dataset(records: int) -> Dataset[Any]:
    return Dataset.range(records).map(made)


def records_of(quick: bool) -> int:
    return 1_000 if quick else 10_000


def by_workers(engine: Processes, records: int, folder: str) -> None:
    dataset(records).save(folder, part_bytes=PART_BYTES, engine=engine)


def by_shards(records: int, folder: str) -> None:
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", SHARD, here, str(records), folder]
    running = [subprocess.Popen([*command, str(index)]) for index in range(2)]
    assert [process.wait() for process in running] == [0, 0]


@functools.cache
def saved(how: str, records: int) -> tuple[float, str]:
    """The seconds of a save, and a digest of all files."""
    save = {
        "1 worker": functools.partial(by_workers, Processes(1)),
        "2 workers": functools.partial(by_workers, Processes(2)),
        "4 workers": functools.partial(by_workers, Processes(4)),
        "2 shards": by_shards,
        # More tasks under way than there are parts: the consumer writes.
        "2 workers, consumer writes": functools.partial(by_workers, Processes(2, prefetch=64)),
    }[how]
    with tempfile.TemporaryDirectory() as place:
        begun = perf_counter()
        save(records, f"{place}/out")
        seconds, digest = perf_counter() - begun, hashlib.sha256()
        for path in sorted(Path(place).rglob("*.*")):
            digest.update(f"{path.relative_to(place)}\n".encode())
            digest.update(path.read_bytes())
    return seconds, digest.hexdigest()


def compared(name: str, bar: Bar, slow: str, fast: list[str], quick: bool) -> Row:
    records = records_of(quick)
    found = {how: saved(how, records) for how in [slow, *fast]}
    if len({digest for _, digest in found.values()}) > 1:
        raise AssertionError(f"the files differ: {found}")
    ratios = [found[slow][0] / found[how][0] for how in fast]
    note = "; ".join(f"{how} {seconds:.1f} s" for how, (seconds, _) in found.items())
    return row(name, bar, ratios[0], ratios, f"{note}; equal digests")


FIGURES: Figures = {
    "save_workers": lambda quick: [
        compared("save_workers", Bar(">=", 1.4), "1 worker", ["2 workers", "4 workers"], quick)
    ],
    "save_shards": lambda quick: [
        compared("save_shards", Bar(">=", 1.4), "1 worker", ["2 shards"], quick)
    ],
    "save_parts": lambda quick: [
        compared("save_parts", Bar(">=", 1), "2 workers, consumer writes", ["2 workers"], quick)
    ],
}

if __name__ == "__main__":
    main(FIGURES, "saving")
