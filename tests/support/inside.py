"""What tests look at that users cannot: every access to a private attribute is here."""

from __future__ import annotations

from typing import Any

from loaderx import Dataset
from loaderx.chain.base import Node
from loaderx.loader.work import PlanWork


def node_of(dataset: Dataset[Any]) -> Node:
    """The last stage of a dataset."""
    return dataset._node


def work_of(dataset: Dataset[Any]) -> PlanWork:
    """What the engines are given to run, for a dataset that is read by index."""
    return PlanWork(node_of(dataset), (0, 1))
