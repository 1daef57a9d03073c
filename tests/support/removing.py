"""Chains of which records are removed at the source, for tests of `without`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from inside import dataset_of, node_of
from loaderx import Dataset
from loaderx.chain.node import Node
from loaderx.stages import nodes as stages


class Refusing:
    """Records that may not all be read."""

    thread_safe = True

    def __init__(self, records: list[Any], refused: Collection[int]) -> None:
        self.records, self.refused = records, set(refused)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Any:
        assert index not in self.refused, f"record {index} was removed, and is read"
        return self.records[index]


def removed_in(node: Node, values: Collection[int]) -> list[int]:
    """The numbers of the records of a source whose "x" is one of these."""
    records = node.source.records(np.arange(node.length))
    return [number for number, record in enumerate(records) if int(record["x"]) in values]


def without_values(dataset: Dataset[Any], values: Collection[int], fill: str) -> Dataset[Any]:
    """The dataset without the records whose "x" is one of these: its sources raise on them."""
    return dataset_of(_rebuilt(node_of(dataset), values, fill))


def _rebuilt(node: Node, values: Collection[int], fill: str) -> Node:
    if isinstance(node, stages.FromSource):
        removed = removed_in(node, values)
        records = node.source.records(np.arange(node.length))
        source = Dataset.from_source(Refusing(records, removed))
        return node_of(source.without(removed, fill=fill, mask_key="is_real"))
    if isinstance(node, stages.FromIterable):
        return node
    if isinstance(node, stages.Cached):
        return node_of(dataset_of(_rebuilt(node.input, values, fill)).cache())
    below = [_rebuilt(each, values, fill) for each in node.inputs]
    return node.replace(input=below[0]) if node.is_stage else node.replace(components=tuple(below))
