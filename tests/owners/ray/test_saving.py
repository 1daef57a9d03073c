"""`Dataset.save` by workers of Ray: they write whole parts, and the bytes do not depend on them."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest

from loaderx import Dataset
from loaderx.engines import Ray
from loaderx.testing.engine_work import wait_until
from saved_records import content
from tests.owners.ray.actors import actors

pytestmark = [
    pytest.mark.owners,
    pytest.mark.foreign,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


def texts(count=600):
    def made(i):
        rng = np.random.default_rng(int(i))
        return {"id": i, "tokens": rng.integers(0, 1000, int(i) % 40), "name": f"record {i}"}

    return Dataset.range(count).map(made)


@pytest.mark.parametrize("workers", [1, 3])
def test_the_files_are_those_of_one_process(workers, tmp_path):
    texts().save(tmp_path / "inline", part_bytes=4000, engine="inline")
    texts().save(tmp_path / "ray", part_bytes=4000, engine=Ray(workers))
    assert len(list((tmp_path / "ray").glob("part-*"))) > 10
    assert content(tmp_path / "ray") == content(tmp_path / "inline")
    wait_until(lambda: not actors(), "the actors to end")


@pytest.mark.filterwarnings("ignore:the worker on .* has died")
def test_workers_that_are_killed_while_they_write(tmp_path):
    texts().save(tmp_path / "inline", part_bytes=4000, engine="inline")
    is_over, killed = threading.Event(), []

    def kill():
        while not is_over.wait(0.1) and len(killed) < 4:
            for pid in list(actors())[:1]:
                if any((tmp_path / "ray").glob("part-*")):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        texts().save(tmp_path / "ray", part_bytes=4000, engine=Ray(3))
    finally:
        is_over.set()
        thread.join()
    assert content(tmp_path / "ray") == content(tmp_path / "inline")
    wait_until(lambda: not actors(), "the actors to end")
