"""How worker processes start, and what they know when they do."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from chains import arrays
from loaderx import DataLoader, Dataset, LoaderxWarning
from loaderx.engines import Processes
from loaderx.engines.processes import stuck as stuck_module
from workers import run_script


@pytest.mark.parametrize("how", ["-c", "stdin"])
def test_a_script_needs_no_main_guard(how):
    done = run_script(
        """
        import dataclasses, loaderx as lx, numpy as np
        from typing import NamedTuple

        scale = 3

        class Pair(NamedTuple):
            a: object
            b: object

        @dataclasses.dataclass
        class Both:
            pair: Pair
            text: object

        class Scale:
            def map(self, x):
                return Both(Pair(x * scale, np.float32(x)), "t" * int(x))

        loader = lx.DataLoader(lx.Dataset.range(6).map(Scale()).batch(3), engine="processes")
        for batch in loader:
            assert type(batch) is Both and type(batch.pair) is Pair
            print(batch.pair.a.tolist(), batch.pair.b.dtype, batch.text.tolist())
        """,
        how=how,
    )
    assert done.stderr == ""
    assert (
        done.stdout
        == "[0, 3, 6] float32 ['', 't', 'tt']\n[9, 12, 15] float32 ['ttt', 'tttt', 'ttttt']\n"
    )


def test_workers_know_nothing_of_jax_and_keep_to_their_share_of_the_cores():
    pytest.importorskip("jax")

    def look(_):
        return {
            "jax": "jax" in sys.modules,
            "threads": os.environ["OMP_NUM_THREADS"],
            "platform": os.environ["JAX_PLATFORMS"],
            "name": Path("/proc/self/comm").read_text().strip(),
            "guard": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
        }

    import jax.numpy as jnp

    jnp.ones(3).block_until_ready()
    workers = 2 * len(os.sched_getaffinity(0))
    with DataLoader(Dataset.range(64).map(look), engine=Processes(workers)) as loader:
        seen = list(loader)
    assert {one["jax"] for one in seen} == {False}
    assert {one["threads"] for one in seen} == {"1"}
    assert {one["platform"] for one in seen} == {"cpu"}
    assert {one["guard"] for one in seen} == {True}
    assert {re.sub(r"\d+", "N", one["name"]) for one in seen} == {"loaderx-N"}


def test_opencv_in_a_worker_keeps_to_its_share():
    pytest.importorskip("cv2")

    def threads(_):
        import cv2

        return cv2.getNumThreads()

    workers = len(os.sched_getaffinity(0))
    with DataLoader(Dataset.range(2).map(threads), engine=Processes(workers)) as loader:
        assert set(loader) == {1}


def test_what_a_worker_prints_is_seen():
    done = run_script(
        """
        import loaderx as lx
        def say(x):
            print("record", x)
            return x
        dataset = lx.Dataset.range(2).map(say).batch(2)
        list(lx.DataLoader(dataset, engine="processes", num_workers=1))
        """
    )
    # One worker: the lines of two could be mixed.
    assert (done.stdout, done.stderr) == ("record 0\nrecord 1\n", "")


def _slowly():
    time.sleep(1.5)
    return lambda record: record


def test_a_start_that_takes_long_is_reported(monkeypatch):
    monkeypatch.setattr(stuck_module, "START_PATIENCE_S", 0.2)

    class Slow:
        def __call__(self, record):
            return record

        def __reduce__(self):
            return _slowly, ()

    with (
        pytest.warns(LoaderxWarning, match=r"worker processes have been starting for [\d.]+ s"),
        DataLoader(arrays(4).map(Slow()).batch(2), engine=Processes(1)) as loader,
    ):
        assert len(list(loader)) == 2
