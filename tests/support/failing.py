"""Datasets of which some records fail.  Worker processes import this module: keep it light."""

from __future__ import annotations

from loaderx import DataLoader

ENGINES = ["inline", "threads", "processes", "auto"]


def load(dataset, engine, **options):
    workers = {} if engine in ("inline", "auto") else {"num_workers": 2}
    return DataLoader(dataset, engine=engine, **workers, **options)


def fragile(record):
    if record["x"] % 5 == 3:
        raise ValueError(f"bad {record['x']}")
    return record


def listed(loader):
    return [(f.index, f.stage, f.error, f.step) for f in loader.stats().failures]


def kept(n):
    return n % 3 != 0
