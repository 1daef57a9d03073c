"""`engines.Executor`: the workers of any executor of `concurrent.futures`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from executors import process_pool
from loaderx.engines import Executor
from loaderx.testing import EngineContract


class TestThreads(EngineContract):
    def make_engine(self):
        return Executor(lambda: ThreadPoolExecutor(2))


class TestProcesses(EngineContract):
    def make_engine(self):
        return Executor(process_pool)
