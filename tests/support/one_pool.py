"""One pool of workers for the loaders of a whole table of datasets."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from loaderx import DataLoader, Dataset
from loaderx.engines import Engine, Shared


@contextlib.contextmanager
def over_one_pool(
    datasets: Iterable[Dataset[Any]], engine: Engine
) -> Iterator[list[DataLoader[Any]]]:
    """A loader of each dataset, for tests of data: starting workers takes longer than these."""
    shared = Shared(engine)
    loaders = [DataLoader(dataset, engine=shared) for dataset in datasets]
    with contextlib.ExitStack() as stack:
        for loader in loaders:  # all at the end: the workers end with the last one that is open
            stack.enter_context(loader)
            iter(loader)  # when the workers start, they are told of the loaders that have one
        yield loaders
