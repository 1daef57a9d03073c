"""`DataLoader.trace`: a file for viewers of traces."""

from __future__ import annotations

import gc
import json
import os
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest

from loaderx import DataLoader, Dataset, FileError, LoaderxWarning
from loaderx.engines import Executor, Shared, Threads
from loaderx.engines.base import Timing
from loaderx.loader.trace import Trace

LOOP = "training loop"


def slowly(record):
    sum(range(2000))
    return record


def arrays(n=240):
    return Dataset.from_arrays(x=np.arange(n)).map(slowly)


CHAINS = {
    "by index": lambda: arrays().batch(4),
    "stream": lambda: arrays().filter(lambda record: record["x"] % 2 == 0).batch(2),
    "records": arrays,
}


def read(path):
    """The slices of a trace by lane, each a name, its begin and its end, and what is told of it."""
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    lanes = {one["tid"]: one["args"]["name"] for one in events if one.get("name") == "thread_name"}
    found = {name: [] for name in lanes.values()}
    for one in events:
        if one["ph"] == "X":
            assert one["dur"] >= 0
            slice_ = one["name"], one["ts"], one["ts"] + one["dur"], one["args"]
            found[lanes[one["tid"]]].append(slice_)
    assert {one["ph"] for one in events} <= {"M", "X"}
    return found


def assert_nested(slices):
    """Slices of a lane follow each other, or lie in each other: viewers show no others."""
    open_until = []
    for _, begin, end, _ in slices:
        while open_until and open_until[-1] <= begin + 1e-3:
            open_until.pop()
        assert not open_until or end <= open_until[-1] + 1e-3
        open_until.append(end)


def steps_of(slices, name):
    return [about["step"] for kind, _, _, about in slices if kind == name]


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("engine", ["inline", "threads", "processes", "auto"])
def test_steps_are_traced(name, engine, tmp_path):
    file = tmp_path / "trace.json"
    with DataLoader(CHAINS[name](), engine=engine, num_workers=None) as loader:
        iterator = iter(loader)
        next(iterator)
        loader.trace(file, steps=20)
        batches = [next(iterator) for _ in range(25)]
    assert len(batches) == 25
    lanes = read(file)
    for slices in lanes.values():
        assert_nested(slices)
    loop = lanes.pop(LOOP)
    assert steps_of(loop, "next") == list(range(1, 21))
    assert steps_of(loop, "your step") == list(range(1, 20))
    if engine == "inline":
        assert not lanes
        assert {"source", "map(slowly)"} <= {kind for kind, *_ in loop}
    if engine in ("threads", "processes"):
        start = "loaderx-" if engine == "threads" else "worker "
        assert lanes
        assert all(lane.startswith(start) for lane in lanes)
        made = [about for slices in lanes.values() for *_, about in slices if "task" in about]
        assert all("records" in about["of"] or "record" in about["of"] for about in made)


def test_stages_are_inside_the_tasks_of_workers(tmp_path):
    """Units of a stream are always timed stage by stage."""
    file = tmp_path / "trace.json"
    with DataLoader(CHAINS["stream"](), engine="threads", num_workers=1) as loader:
        loader.trace(file, steps=20)
        assert len(list(loader)) == 60
    (slices,) = [slices for lane, slices in read(file).items() if lane != LOOP]
    assert {kind for kind, *_ in slices} >= {"unit of the stream", "source", "map(slowly)"}


def test_it_is_written_at_the_end_of_the_stream(tmp_path):
    file = tmp_path / "trace.json"
    loader = DataLoader(CHAINS["by index"](), engine="inline")
    loader.trace(file, steps=1000)
    list(loader)
    assert steps_of(read(file)[LOOP], "next") == list(range(60))


def test_it_is_written_when_the_loader_is_closed(tmp_path):
    file = tmp_path / "trace.json"
    with DataLoader(CHAINS["by index"](), engine="threads") as loader:
        loader.trace(file)
        for step, _ in enumerate(loader):
            if step == 2:
                break
    assert steps_of(read(file)[LOOP], "next") == [0, 1, 2]


def test_a_second_trace_ends_the_first(tmp_path):
    first, second = tmp_path / "1.json", tmp_path / "2.json"
    with DataLoader(CHAINS["by index"](), engine="inline") as loader:
        iterator = iter(loader)
        loader.trace(first)
        next(iterator)
        loader.trace(second)
        next(iterator)
    assert [steps_of(read(file)[LOOP], "next") for file in (first, second)] == [[0], [1]]


def test_workers_that_others_run_have_lanes_too(tmp_path):
    file = tmp_path / "trace.json"
    engine = Shared(Threads(1))
    with DataLoader(CHAINS["by index"](), engine=engine) as loader:
        loader.trace(file, steps=5)
        list(loader)
    assert set(read(file)) == {LOOP, "loaderx-0"}


def test_an_executor_of_threads_tells_nothing_of_its_workers(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    file = tmp_path / "trace.json"
    with DataLoader(CHAINS["by index"](), engine=Executor(lambda: ThreadPoolExecutor(1))) as loader:
        loader.trace(file, steps=5)
        list(loader)
    assert set(read(file)) == {LOOP}


def test_placing_is_traced(tmp_path):
    import jax

    file = tmp_path / "trace.json"
    device = jax.devices()[0]
    with DataLoader(CHAINS["by index"](), engine="inline", sharding=device) as loader:
        loader.trace(file, steps=10)
        list(loader)
    loop = read(file)[LOOP]
    assert_nested(loop)
    assert sum(kind == "place on devices" for kind, *_ in loop) >= 10


def test_profiles_of_jax_show_it(tmp_path):
    import gzip

    import jax

    device = jax.devices()[0]
    with DataLoader(CHAINS["by index"](), engine="inline", sharding=device) as loader:
        batches = iter(loader)
        with jax.profiler.trace(tmp_path, create_perfetto_trace=True):
            for _ in range(5):
                next(batches)
    (file,) = tmp_path.rglob("perfetto_trace.json.gz")
    names = [
        one.get("name") for one in json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    ]
    assert names.count("loaderx.next") == 5
    assert names.count("loaderx.place") >= 5


def test_a_copy_in_another_process_is_not_traced(tmp_path):
    loader = DataLoader(Dataset.range(10).batch(5), engine="inline")
    loader.trace(tmp_path / "trace.json")
    list(pickle.loads(pickle.dumps(loader)))
    loader.close()
    assert read(tmp_path / "trace.json") == {}


def test_a_file_that_cannot_be_written_is_an_error_at_once(tmp_path):
    loader = DataLoader(Dataset.range(10).batch(5))
    with pytest.raises(FileError, match=r"no.json cannot be written: No such file or directory"):
        loader.trace(tmp_path / "nowhere" / "no.json")
    with pytest.raises(ValueError, match="`steps` must be at least 1, got 0"):
        loader.trace(tmp_path / "trace.json", steps=0)


def test_it_is_whole_from_the_beginning(tmp_path):
    file = tmp_path / "trace.json"
    loader = DataLoader(CHAINS["by index"](), engine="inline")
    loader.trace(file)
    assert read(file) == {}
    next(iter(loader))
    assert read(file) == {}
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


@pytest.mark.parametrize("engine", ["inline", "threads"])
def test_it_is_written_when_nobody_holds_the_loader(engine, tmp_path):
    file = tmp_path / "trace.json"
    loader = DataLoader(CHAINS["by index"](), engine=engine)
    loader.trace(file)
    try:
        for step, _ in enumerate(loader):
            if step == 2:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    del loader
    gc.collect()
    assert steps_of(read(file)[LOOP], "next") == [0, 1, 2]


def test_it_is_written_when_the_program_ends(tmp_path):
    program = (
        "import sys\n"
        "from loaderx import DataLoader, Dataset\n"
        "loader = DataLoader(Dataset.range(100).batch(4), engine='inline')\n"
        "loader.trace(sys.argv[1])\n"
        "for step, _ in enumerate(loader):\n"
        "    if step == 2:\n"
        "        raise KeyboardInterrupt\n"
    )
    file = tmp_path / "trace.json"
    ended = subprocess.run(
        [sys.executable, "-c", program, file], capture_output=True, text=True, check=False
    )
    assert ended.stderr.endswith("KeyboardInterrupt\n")
    assert steps_of(read(file)[LOOP], "next") == [0, 1, 2]


def test_what_was_written_is_not_written_again(tmp_path):
    file = tmp_path / "trace.json"
    loader = DataLoader(CHAINS["by index"](), engine="inline")
    loader.trace(file)
    list(loader)
    file.unlink()
    loader.close()
    del loader
    gc.collect()
    assert not file.exists()


def test_a_file_that_cannot_be_written_later_is_a_warning(tmp_path):
    for steps in (3, 1000):  # in the middle, and at the end of the stream
        folder = tmp_path / "gone"
        folder.mkdir()
        loader = DataLoader(Dataset.range(40).batch(8), engine="inline")
        loader.trace(folder / "trace.json", steps=steps)
        shutil.rmtree(folder)
        with pytest.warns(LoaderxWarning, match=r"trace.json cannot be written: No such file"):
            batches = [batch.tolist() for batch in loader]
        assert [batch[0] for batch in batches] == [0, 8, 16, 24, 32]


def test_a_device_is_written_to(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reading = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with DataLoader(Dataset.range(40).batch(8), engine="inline") as loader:
            loader.trace(tmp_path / "pipe")
        assert json.loads(os.read(reading, 1000))["displayTimeUnit"] == "ms"
    finally:
        os.close(reading)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_other_threads_may_add_to_it_while_it_is_written(tmp_path):
    class Stages(dict):
        def values(self):
            recording.timed(Timing({}, 1))
            return super().values()

    recording = Trace(str(tmp_path / "trace.json"), steps=3)
    for step in range(2):
        timing = Timing(Stages(source=0.5), 1)
        recording.timed(timing)
        recording.waited(step, timing.ended - 1.0, timing.ended)
    recording.stop()
    loop = read(tmp_path / "trace.json")[LOOP]
    assert steps_of(loop, "next") == [0, 1]
    assert [name for name, *_ in loop].count("source") == 2
