"""Some records of a dataset, by which its folder is known again."""

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

LOOKED_AT = 32  # records, from which the size of others is estimated, too
NO_RECORDS = "cannot save: the dataset has no records."


def sample_positions(node: Node) -> Positions:
    """Where some records are that are spread over a dataset that is read by index."""
    length = node.length
    assert length is not None
    if not length:
        raise ChainError(NO_RECORDS)
    count = min(length, LOOKED_AT)
    positions = np.arange(count)
    return positions * length // count if node.random_access else positions


def sample_work(node: Node) -> SaveWork:
    """What reads them."""
    length = node.length
    assert length is not None
    return SaveWork(node, Steps(length, length, length))


def read_sample(node: Node, context: ReadContext) -> tuple[Positions, Encoded]:
    """These records and their positions; those of the first piece, where they lie in pieces."""
    positions = sample_positions(node)
    found = sample_work(node).read(positions, context)[0]
    return positions[: found.data.length], found


def record_bytes(sample: Encoded) -> int:
    """The size of a record, more or less."""
    return max(1, sample.data.nbytes // sample.data.length)


def made_by(node: Node, sample: Encoded, images: Sequence[str]) -> Json:
    """What distinguishes a dataset from others: functions are known by what they make."""
    content = packed(sample)
    digest = hashlib.sha256(content["type"].tobytes())
    for array in content["arrays"]:
        digest.update(np.ascontiguousarray(array).tobytes())
    stages: list[Json] = [*map(identity, fingerprints(node, node.default_seed(), whole=True))]
    return {"stages": stages, "values": digest.hexdigest(), "images": [*images]}
