"""A sample of a dataset's records, by which its folder is recognised."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from loaderx.chain.fingerprint import fingerprints, identity
from loaderx.chain.node import Node
from loaderx.errors import ChainError
from loaderx.loader.save.work import SaveWork, Steps, packed
from loaderx.reading.context import ReadContext
from loaderx.reading.rows import Positions
from loaderx.sources.cache.folder import Json
from loaderx.sources.columns.record_columns import Encoded

LOOKED_AT = 32  # records; they also give an estimate of the record size
NO_RECORDS = "cannot save: the dataset has no records."


def sample_positions(node: Node) -> Positions:
    """Positions of the sample, spread over a dataset that is read by index."""
    length = node.length
    assert length is not None
    if not length:
        raise ChainError(NO_RECORDS)
    count = min(length, LOOKED_AT)
    positions = np.arange(count)
    return positions * length // count if node.random_access else positions


def sample_work(node: Node) -> SaveWork:
    """The work that reads the sample."""
    length = node.length
    assert length is not None
    return SaveWork(node, Steps(length, length, length))


def read_sample(node: Node, context: ReadContext) -> tuple[Positions, Encoded]:
    """The sample and its positions; only the first piece, if records come in pieces."""
    positions = sample_positions(node)
    found = sample_work(node).read(positions, context)[0]
    return positions[: found.data.length], found


def record_bytes(sample: Encoded) -> int:
    """The approximate size of a record."""
    return max(1, sample.data.nbytes // sample.data.length)


def made_by(node: Node, sample: Encoded, images: Sequence[str]) -> Json:
    """Identifies a dataset by its stages and sample: functions are compared by their results."""
    content = packed(sample)
    digest = hashlib.sha256(content["type"].tobytes())
    for array in content["arrays"]:
        digest.update(np.ascontiguousarray(array).tobytes())
    stages: list[Json] = [*map(identity, fingerprints(node, node.default_seed(), whole=True))]
    removed = [below.removed for below in node.below() if below.removed is not None]
    stages += [each.text(len(each.ids)) for each in removed]
    return {"stages": stages, "values": digest.hexdigest(), "images": [*images]}
