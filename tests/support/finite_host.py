"""One host of an evaluation, as a program: `test_counts.py` runs a few of them side by side.

    python finite_host.py HOST HOSTS OUT

Reads all batches of filtered and packed documents with a mask, and writes them to OUT.npz.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from loaderx import DataLoader, Dataset


def documents() -> list[dict[str, Any]]:
    lengths = np.random.default_rng(5).integers(1, 40, 700).tolist()
    return [{"tokens": np.arange(n, dtype=np.int32) + i} for i, n in enumerate(lengths)]


def is_long(record: dict[str, Any]) -> bool:
    return len(record["tokens"]) > 5


def dataset() -> Dataset[Any]:
    packed = Dataset.from_source(documents()).filter(is_long).pack({"tokens": 64}, window=50)
    return packed.batch(16, lanes=4, pad_remainder=True)


def perplexity(batches: list[dict[str, Any]]) -> float:
    """Of a toy model; every row counts once, and padding not at all."""
    loss = tokens = 0.0
    for batch in batches:
        real = (batch["tokens_segment_ids"] > 0) & batch["mask"][:, None]
        loss += float((np.log1p(batch["tokens"].astype(np.float64)) * real).sum())
        tokens += int(real.sum())
    return float(np.exp(loss / tokens))


def main() -> None:
    host, hosts, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    with DataLoader(dataset(), shard=(host, hosts), engine="threads", num_workers=1) as loader:
        batches = list(loader)
    np.savez(out, **{f"{i}.{key}": leaf for i, b in enumerate(batches) for key, leaf in b.items()})


if __name__ == "__main__":
    main()
