"""What tests look at that users cannot: every access to a private attribute is here."""

from __future__ import annotations

from typing import Any

from loaderx import Dataset
from loaderx.chain.base import Node
from loaderx.loader.stream import StreamSetup
from loaderx.loader.units import UnitWork
from loaderx.loader.work import PlanWork
from loaderx.sources import Source


def node_of(dataset: Dataset[Any]) -> Node:
    """The last stage of a dataset."""
    return dataset._node


def dataset_of(node: Node) -> Dataset[Any]:
    """The dataset with this last stage."""
    return Dataset._of(node)


def source_of(dataset: Dataset[Any]) -> Source:
    """The source of a dataset without further stages."""
    return node_of(dataset).source


def work_of(dataset: Dataset[Any]) -> PlanWork:
    """What the engines are given to run, for a dataset that is read by index."""
    return PlanWork(node_of(dataset), (0, 1))


def stream_work_of(dataset: Dataset[Any]) -> UnitWork:
    """What the engines are given to run, for a stream."""
    return StreamSetup(node_of(dataset), (0, 1)).work
