"""Chains over sources that are fetched, by index and as streams."""

from __future__ import annotations

import numpy as np

from fetched import Fetched, Local
from loaderx import DataLoader, Dataset

COUNT = 48


def twice(record):
    return {"x": record["x"] * 2}


def is_kept(record):
    return record["x"] % 3 != 1


def as_tokens(record):
    return {"tokens": np.full(1 + record["x"] % 5, record["x"])}


BY_INDEX = {
    "batches": lambda a, b: a.batch(4),
    "records": lambda a, b: a.map(twice),
    "shuffle": lambda a, b: a.shuffle(seed=1).batch(4).map(twice).repeat(2),
    "block shuffle": lambda a, b: a.shuffle(seed=1, block=4, window=12).batch(5).repeat(2),
    "mix": lambda a, b: Dataset.mix([a.shuffle(seed=1), b], [2, 1]).batch(4),
    "zip": lambda a, b: Dataset.zip((a, b.shuffle(seed=2))).batch(4),
    "concatenate": lambda a, b: Dataset.concatenate([a, b]).shuffle(seed=4).batch(5),
    "cache": lambda a, b: a.cache().shuffle(seed=1).repeat(2).batch(4),
}
STREAMS = {
    "filter": lambda a, b: a.filter(is_kept).batch(4),
    "filter of a shuffle": lambda a, b: a.shuffle(seed=2).filter(is_kept).repeat(2).batch(4),
    "pack": lambda a, b: a.map(as_tokens).pack({"tokens": 8}, window=16).batch(2),
    "a mix": lambda a, b: Dataset.mix([a.filter(is_kept), b.filter(is_kept)], [3, 1]).batch(4),
    "records": lambda a, b: a.filter(is_kept),
    "lanes": lambda a, b: a.filter(is_kept).repeat(2).batch(4, lanes=2),
}
CHAINS = {**BY_INDEX, **{f"stream: {name}": chain for name, chain in STREAMS.items()}}


def sources(kind=Fetched, **options):
    return kind(COUNT, **options), kind(COUNT, 1000, **options)


def dataset_of(name, two):
    return CHAINS[name](*map(Dataset.from_source, two))


def plain(name):
    return list(DataLoader(dataset_of(name, sources(Local)), engine="inline"))


def numbers(batch):
    return np.ravel(batch["x"]).tolist()
