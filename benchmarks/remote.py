"""Files behind URLs: a web server with 50 ms a request and 100 MB/s in all, on loopback.

    python benchmarks/remote.py [--megabytes N] [--latency-ms N] [--rate-mb N] [--folder DIR]

Records of 64 kB in the native layout, in parts of 16 MB.  The server is a process of its own; it
counts requests and bytes.  `open` is until the dataset is there, `first batch` from then on; `pass`
is one pass over all records with an empty folder of downloads, as a share of what the rate allows,
and `again` one that finds them there.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from urllib.request import urlopen

import numpy as np
from suite.slow_server import serving

from loaderx import DataLoader, Dataset
from loaderx.sources.column_data import ColumnData, ColumnType
from loaderx.sources.ondisk.native_layout import Description, write_description
from loaderx.sources.ondisk.native_writer import PartWriter

RECORD, PART, BATCH = 1 << 16, 256, 16  # bytes, records, records


def write(folder: Path, megabytes: int) -> None:
    """The native layout with one column."""
    kinds = {"x": ColumnType("fixed", np.dtype(np.uint8), (RECORD,))}
    parts = []
    for number in range(max(1, megabytes * 10**6 // (PART * RECORD))):
        rows = np.full((PART, RECORD), number % 251, np.uint8)
        with PartWriter(str(folder), number, kinds) as writer:
            writer.append({"x": ColumnData(PART, rows)})
            parts.append(writer.close())
    write_description(str(folder), Description(kinds, parts, {}, ()))


# What is measured ---------------------------------------------------------------------------------


def measure(url: str, engine: str, cache: str, rate_mb: float) -> None:
    begun = time.perf_counter()
    dataset = Dataset.open(f"{url}/", cache=cache)
    opened = time.perf_counter()
    passes, first = [], 0.0
    for _ in range(2):
        start = time.perf_counter()
        with DataLoader(dataset.batch(BATCH), engine=engine, num_workers=4) as loader:
            for batch in loader:
                first = first or time.perf_counter() - opened
                batch["x"][:, 0].sum()
        passes.append(time.perf_counter() - start)
    share = len(dataset) * RECORD / 1e6 / passes[0] / rate_mb
    told = urlopen(f"{url}/asked").read().decode()
    print(
        f"{engine:10} open {opened - begun:5.2f} s, first batch {first:5.2f} s, "
        f"pass {passes[0]:6.2f} s ({share:.2f} of the rate), again {passes[1]:5.2f} s; {told}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--latency-ms", type=float, default=50.0)
    parser.add_argument("--rate-mb", type=float, default=100.0)
    parser.add_argument("--folder", help="for the files and the downloads")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        data = Path(folder, "data")
        data.mkdir()
        write(data, options.megabytes)
        with serving(str(data), options.latency_ms, options.rate_mb) as url:
            for engine in ("inline", "threads", "processes"):
                cache = os.path.join(folder, f"cache-{engine}")
                measure(url, engine, cache, options.rate_mb)


if __name__ == "__main__":
    main()
