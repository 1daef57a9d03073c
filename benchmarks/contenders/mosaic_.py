"""Mosaic Streaming: MDS files; it knows no plain HTTP, so the server is its store of S3."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
from suite.workloads import FAR, MIXED, Job, Record

TITLE = "Mosaic Streaming"
REQUIREMENTS = ["mosaicml-streaming", "torch==2.13.0", "torchvision==0.28.0", "numpy"]
VERSIONS = ["mosaicml-streaming", "torch", "numpy"]
DEFAULTS = "StreamingDataset(remote='s3://...', shuffle=True), S3_ENDPOINT_URL, StreamingDataLoader"
WAYS = {"remote": {"defaults": DEFAULTS, "best": f"{DEFAULTS}(num_workers=4)"}}
CANNOT: dict[str, str] = {}


def begin() -> None:
    # The server asks for no credentials, but the client does not send anything without.
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        os.environ[name] = "none"
    os.environ["AWS_DEFAULT_REGION"] = "us-east-1"
    import streaming  # noqa: F401


def note() -> str:
    return ""


def prepare(job: Job) -> None:
    from streaming import MDSWriter

    folder = job.data / "remote" / "mds"
    shutil.rmtree(folder, ignore_errors=True)
    columns = {"x": f"ndarray:uint8:{FAR}", "label": "int32"}
    limit = job.part_rows() * (FAR + 64)
    with MDSWriter(out=str(folder), columns=columns, size_limit=limit) as writer:
        for _, rows, labels in job.parts():
            for row, label in zip(rows, labels, strict=True):
                writer.write({"x": row, "label": label})


def remote(job: Job) -> Iterator[Record]:
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    os.environ["S3_ENDPOINT_URL"] = job.url
    clean_stale_shared_memory()
    with tempfile.TemporaryDirectory() as local:
        dataset: Any = StreamingDataset(
            remote="s3://bucket/mds",
            local=local,
            batch_size=job.batch_size,
            shuffle=True,
            shuffle_block_size=MIXED,
            num_canonical_nodes=1,
        )
        workers = 4 if job.variant == "best" else 0
        loader = StreamingDataLoader(dataset, batch_size=job.batch_size, num_workers=workers)
        for batch in loader:
            label = np.asarray(batch["label"]).astype(np.int32)
            yield {"x": np.asarray(batch["x"]), "label": label}
