"""`engines.Executor`: the workers of any executor of `concurrent.futures`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from executors import process_pool
from loaderx import DataLoader, Dataset
from loaderx.engines import Executor
from loaderx.testing import EngineContract


class TestThreads(EngineContract):
    def make_engine(self):
        return Executor(lambda: ThreadPoolExecutor(2))


class TestProcesses(EngineContract):
    def make_engine(self):
        return Executor(process_pool)


class WithoutCancelling(ThreadPoolExecutor):
    """Knows `wait` alone, as the executors of Dask and of loky do."""

    ends = 0

    def shutdown(self, wait=True):
        super().shutdown(wait)
        WithoutCancelling.ends += 1


@pytest.mark.parametrize("is_closed", [True, False])
def test_executors_that_cannot_cancel_are_shut_down(is_closed, monkeypatch):
    monkeypatch.setattr(WithoutCancelling, "ends", 0)
    loader = DataLoader(
        Dataset.range(4).batch(2), engine=Executor(lambda: WithoutCancelling(2), prefetch=0)
    )
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
    if is_closed:
        loader.close()
    del loader
    assert WithoutCancelling.ends == 1
