"""Worker processes where the system gives less: closed descriptors, limits, a zip file."""

from __future__ import annotations

import resource
import subprocess
import sys
import textwrap
import zipapp
from pathlib import Path
from typing import Any

import pytest

import loaderx

SCRIPT = """
import os, resource, sys
import numpy as np
import loaderx as lx

def standard(x):
    links = [os.readlink(f"/proc/self/fd/{number}") for number in range(3)]
    assert not any("pipe" in link and number == 0 for number, link in enumerate(links)), links
    return np.array([os.path.exists(f"/proc/self/fd/{number}") for number in range(3)])

def ours():
    found = []
    for number in range(3):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            found.append("closed")
    return found

before = ours()
loader = lx.DataLoader(lx.Dataset.range(4).map(standard).batch(2), engine=lx.engines.Processes(2))
iterator = iter(loader)
batches = [next(iterator)]
assert ours() == before, (before, ours())
batches += iterator
loader.close()
assert ours() == before, (before, ours())
with open(sys.argv[1], "w") as out:
    out.write(f"{len(batches)} {all(batch.all() for batch in batches)}")
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_descriptors_may_be_closed(closed, tmp_path):
    """Nothing of ours takes their place, and the workers have all three of them."""
    (tmp_path / "script.py").write_text(SCRIPT)
    out = tmp_path / "out"
    command = f'exec "{sys.executable}" "{tmp_path}/script.py" "{out}" {closed}'
    source = str(Path(loaderx.__file__).parent.parent)
    done = subprocess.run(
        ["sh", "-c", command],
        env={"PYTHONPATH": source, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert out.read_text() == "2 True"


LIMITED = """
import resource, sys
import numpy as np
import loaderx as lx

def large(x):
    return np.broadcast_to(np.uint8(0), int({nbytes}))  # takes no memory before it is in a batch

loader = lx.DataLoader(lx.Dataset.range(4).map(large).batch(2), engine=lx.engines.Processes(2))
resource.setrlimit(resource.{name}, ({value}, resource.getrlimit(resource.{name})[1]))
try:
    for batch in loader:
        pass
except lx.LoaderxError as error:
    print(type(error).__name__, error)
finally:
    loader.close()
"""


def limited(name: str, value: Any, nbytes: float = 100) -> str:
    script = LIMITED.format(name=name, value=value, nbytes=nbytes)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_limit_on_the_size_of_files_is_named():
    said = limited("RLIMIT_FSIZE", 1 << 20)
    assert said == (
        "LoaderxError worker processes need pipes and shared memory: files must not become that "
        "large here (ulimit -f is 1024), and memory that processes share counts as a file. Raise "
        "the limit (ulimit -f unlimited), or use engine='threads'.\n"
    )


@pytest.mark.parametrize("count", [4, 9, 14])
def test_a_limit_on_open_files_is_named(count):
    """Met by the pipes, by the start of a worker, or by what comes later."""
    said = limited("RLIMIT_NOFILE", count)
    assert said.startswith("LoaderxError ")
    assert said.endswith(
        f": this process has as many files open as it may (ulimit -n is {count}). Raise the limit, "
        "use fewer workers, or use engine='threads'.\n"
    )


def test_a_worker_without_address_space_says_so():
    """The batch does not fit below the limit, in a worker that has started well."""
    limit = 1 << 30
    assert resource.getrlimit(resource.RLIMIT_AS)[0] in (resource.RLIM_INFINITY, limit)
    said = limited("RLIMIT_AS", limit, nbytes=6e8)
    assert "shared memory cannot be mapped: there is no memory, or no address space, left" in said
    assert f"(ulimit -v is {limit // 1024})" in said


def test_threads_that_cannot_start_are_named(monkeypatch):
    import threading

    from loaderx import DataLoader, Dataset, LoaderxError

    start, started = threading.Thread.start, []

    def refused(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    with (
        DataLoader(Dataset.range(4).batch(2), engine="threads", num_workers=2) as loader,
        pytest.raises(LoaderxError, match=r"worker thread 2 of 2 cannot start: .*ulimit -u"),
    ):
        list(loader)


def test_loaderx_in_a_zip_file(tmp_path):
    """A script and loaderx in one file, as `python -m zipapp` makes it."""
    app = tmp_path / "app"
    app.mkdir()
    package = Path(loaderx.__file__).parent
    for path in package.rglob("*.py"):
        copy = app / "loaderx" / path.relative_to(package)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    (app / "helper.py").write_text("def double(x):\n    return 2 * x\n")
    (app / "__main__.py").write_text(
        "import loaderx as lx, helper\n"
        "dataset = lx.Dataset.range(6).map(helper.double).map(lambda x: x + 1).batch(3)\n"
        "with lx.DataLoader(dataset, engine=lx.engines.Processes(2)) as loader:\n"
        "    print(lx.__file__, [batch.tolist() for batch in loader])\n"
    )
    zipapp.create_archive(app, tmp_path / "app.pyz")
    done = subprocess.run(
        [sys.executable, "app.pyz"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("[[1, 3, 5], [7, 9, 11]]\n")
    assert "app.pyz/loaderx" in done.stdout
