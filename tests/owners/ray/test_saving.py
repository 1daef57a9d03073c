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
from saved_records import content, content_there
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


def place(folder, kind):
    """Where Ray's workers save: a folder, or its URL, to which each of them uploads its parts."""
    if kind == "url":
        pytest.importorskip("fsspec", reason="needs fsspec")
        return f"file://{folder / 'ray'}"
    return folder / "ray"


def check_same(folder, kind):
    found = content(folder / "ray")
    assert (content_there(found) if kind == "url" else found) == content(folder / "inline")


@pytest.mark.parametrize(("workers", "kind"), [(1, "folder"), (3, "folder"), (3, "url")])
def test_the_files_are_those_of_one_process(workers, kind, tmp_path):
    texts().save(tmp_path / "inline", part_bytes=4000, engine="inline")
    texts().save(place(tmp_path, kind), part_bytes=4000, engine=Ray(workers))
    assert len(list((tmp_path / "ray").glob("part-*"))) > 10
    check_same(tmp_path, kind)
    wait_until(lambda: not actors(), "the actors to end")


@pytest.mark.filterwarnings("ignore:the worker on .* has died")
@pytest.mark.parametrize("kind", ["folder", "url"])
def test_workers_that_are_killed_while_they_write(kind, tmp_path):
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
        texts().save(place(tmp_path, kind), part_bytes=4000, engine=Ray(3))
    finally:
        is_over.set()
        thread.join()
    check_same(tmp_path, kind)
    wait_until(lambda: not actors(), "the actors to end")
