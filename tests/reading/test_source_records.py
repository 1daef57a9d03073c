"""What operators say that they read of sources is what they then read, step by step."""

from __future__ import annotations

import numpy as np
import pytest

from fetched import Fetched
from inside import node_of
from loaderx import Dataset
from loaderx.memory import Pool
from loaderx.plans.index_plan import IndexPlan
from loaderx.reading.context import ReadContext


def halved(batch):
    return {"x": batch["x"] // 2}


def other(record, rng):
    return {"x": record["x"] + rng.integers(3)}


def numbered(index, record):
    return {"x": record["x"] + index}


CHAINS = {
    "records": lambda a, b: a,
    "batches": lambda a, b: a.batch(4),
    "a short batch": lambda a, b: a.batch(7),
    "a padded batch": lambda a, b: a.batch(7, pad_remainder=True),
    "collated": lambda a, b: a.batch(4, collate_fn=lambda records: records[0]),
    "shuffle": lambda a, b: a.shuffle(seed=3).batch(4),
    "block shuffle": lambda a, b: a.shuffle(seed=3, block=4, window=12).batch(4),
    "map": lambda a, b: a.map(lambda r: r).batch(4),
    "random map": lambda a, b: a.random_map(other).batch(4),
    "map with index": lambda a, b: a.map_with_index(numbered).batch(4),
    "map of batches": lambda a, b: a.batch(4).map(halved),
    "random map of batches": lambda a, b: a.batch(4).random_keys("key").map(lambda b: b),
    "selected": lambda a, b: a[3:19:2].batch(4).skip(1),
    "sampled": lambda a, b: a.sample(np.arange(1.0, 25.0), 12, seed=2).batch(4),
    "repeated": lambda a, b: a.shuffle(seed=1).repeat(2).batch(5),
    "shuffled batches": lambda a, b: a.batch(4).shuffle(seed=1).repeat(2),
    "unbatched": lambda a, b: a.batch(4).shuffle(seed=1).map(halved).unbatch().batch(6),
    "concatenated": lambda a, b: (
        Dataset.concatenate([a, b.shuffle(seed=2)]).shuffle(seed=5).batch(4)
    ),
    "concatenated batches": lambda a, b: Dataset.concatenate([a.batch(4), b.batch(4)]),
    "mixed": lambda a, b: Dataset.mix([a, b], [3, 1]).batch(4),
    "mixed batches": lambda a, b: Dataset.mix([a.batch(4), b.batch(4)]),
    "zipped": lambda a, b: Dataset.zip((a.take(16), b)).batch(4),
    "zipped batches": lambda a, b: Dataset.zip((a.take(16).batch(4), b.batch(4))),
    "on error": lambda a, b: a.shuffle(seed=1).map(halved).on_error("replace").batch(4),
    "on error after batch": lambda a, b: a.map(halved).batch(4).on_error("replace"),
    "cached": lambda a, b: a.cache().shuffle(seed=1).batch(4),
}


def read_by(source, indices):
    return source.gather(indices, Pool().lend)["x"].tolist()


WHOLE = ("records", "a short batch", "a padded batch", "repeated")  # not for several hosts
SHARDED = [(name, (1, 2)) for name in CHAINS if name not in WHOLE]


@pytest.mark.parametrize(("name", "host"), [*[(name, (0, 1)) for name in CHAINS], *SHARDED])
def test_source_records(name, host):
    a, b = Fetched(24), Fetched(16, first=100)
    node = node_of(CHAINS[name](Dataset.from_source(a), Dataset.from_source(b)))
    plan, lend = IndexPlan(node, shard=host), Pool().lend
    if name == "cached":
        plan.read(0, ReadContext(lend))  # it looks at a few records before it begins
    for step in range(node.length):
        stop, found = plan.copy().source_records(step, step + 1)
        assert stop == step + 1
        told = [n for source, indices in found for n in read_by(source, indices)]
        a.read.clear()
        b.read.clear()
        plan.read(step, ReadContext(lend))
        read = [*a.read.elements(), *b.read.elements()]
        assert sorted(told) == sorted(read), step
