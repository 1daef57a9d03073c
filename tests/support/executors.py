"""Executors for tests: pools of processes that are not forks of this one, which may have JAX."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor


def process_pool(workers: int = 2) -> ProcessPoolExecutor:
    """Processes with loaderx imported.  A fork of a process with threads may hang."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["loaderx.engines.elsewhere.maker"])
    return ProcessPoolExecutor(workers, mp_context=context)
