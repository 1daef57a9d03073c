"""What tests look at that users cannot: every access to a private attribute is here."""

from __future__ import annotations

from typing import Any

from loaderx import DataLoader, Dataset
from loaderx.chain.node import Node
from loaderx.engines import Inline, Session
from loaderx.engines.processes.pool import WorkerPool
from loaderx.engines.processes.worker_processes import WorkerProcesses
from loaderx.loader.stream_iterator import StreamSetup
from loaderx.loader.tasks.plan_work import PlanWork
from loaderx.loader.tasks.units import UnitWork
from loaderx.memory import Pool
from loaderx.plans.index_plan import IndexPlan
from loaderx.sources import Source
from loaderx.sources.files.file_set import FileSet


def node_of(dataset: Dataset[Any]) -> Node:
    """The last stage of a dataset."""
    return dataset._node


def dataset_of(node: Node) -> Dataset[Any]:
    """The dataset with this last stage."""
    return Dataset._of(node)


def source_of(dataset: Dataset[Any]) -> Source:
    """The source of a dataset without further stages."""
    return node_of(dataset).source


def session_of(loader: DataLoader[Any]) -> Session:
    """The session of a loader, once it has begun."""
    return loader._session


def pool_of(session: Session) -> WorkerPool:
    """The worker processes of a session, once they have been started."""
    return session._pool


def processes_of(session: Session) -> WorkerProcesses:
    """What the workers of a session share with this process."""
    return pool_of(session)._processes


def work_of(dataset: Dataset[Any]) -> PlanWork:
    """What the engines are given to run, for a dataset that is read by index."""
    return PlanWork(node_of(dataset), (0, 1))


def stream_work_of(dataset: Dataset[Any]) -> UnitWork:
    """What the engines are given to run, for a stream."""
    return StreamSetup(node_of(dataset), (0, 1), Inline()).work


def plan_of(dataset: Dataset[Any]) -> IndexPlan:
    """The plan that a dataset keeps for its single elements."""
    return dataset._compiled()


def lines_of(source: Any) -> Any:
    """The lines of the files of a source."""
    return source._lines


def maps_of(files: FileSet) -> Any:
    """The maps that a set of files keeps, by number."""
    return files._maps


def many_of(dataset: Any, indices: Any) -> Any:
    """Elements of a `compat.grain.MapDataset`, read at once."""
    return dataset._getitems(indices)


def gathered_of(dataset: Any, indices: Any) -> Any:
    """The same elements stacked by one gather; None where that cannot be."""
    return dataset._gather(indices, Pool().lend) if dataset._gathers else None
