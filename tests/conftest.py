"""Every test leaves the house as it found it: no thread, process or descriptor stays behind."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import time
from pathlib import Path

import hypothesis
import pytest
from _pytest.doctest import DoctestModule

from workers import loader_threads, worker_processes

# Before anything imports jax: eight devices made of one CPU.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
# Threads of OpenBLAS spin when NumPy is imported, and a test run starts a thousand interpreters.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A shell that starts this in the background has Ctrl-C ignored, which tests of it would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGINT, signal.default_int_handler)

HAS_PROC = Path("/proc/self/fd").exists()
collect_ignore_glob = ["files/*.py"]  # programs that wrote the files there, with other libraries

hypothesis.settings.register_profile(
    "loaderx",
    deadline=None,  # two busy cores: time says nothing here
    print_blob=True,
    suppress_health_check=[
        hypothesis.HealthCheck.too_slow,
        hypothesis.HealthCheck.filter_too_much,
        hypothesis.HealthCheck.data_too_large,
    ],
)
hypothesis.settings.load_profile("loaderx")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file():
    """Tests have no examples in their docstrings: looking for some in all files takes a second."""
    return [one for one in (yield) if not isinstance(one, DoctestModule)]


@pytest.fixture(autouse=True)
def _own_cache_folder(tmp_path_factory, monkeypatch):
    """Indexes and copies of files go into a folder of the test run, never into the home folder."""
    monkeypatch.setenv("LOADERX_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def _left_running() -> list[str]:
    return [*loader_threads(), *worker_processes()]


def _descriptors() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of this very listing
            found.add(f"{name} -> {os.readlink(f'/proc/self/fd/{name}')}")
    return {one for one in found if "/proc/" not in one and "pipe:" not in one}


@pytest.fixture(autouse=True)
def _no_leaks(request):
    looks = HAS_PROC and "foreign" not in request.keywords
    before = _descriptors() if looks else set()
    gc.freeze()  # what is there by now (jax, pandas, ...) takes 0.2 s to look through, every time
    yield
    patience = time.monotonic() + 20  # steps under way may finish, and keep memory until then
    while True:
        gc.collect()
        left = _left_running()
        if looks and not left:
            left = [f"descriptor {one}" for one in _descriptors() - before if _is_ours(one)]
        if not left or time.monotonic() > patience:
            break
        time.sleep(0.001)
    assert not left, f"left behind: {left}"


def _is_ours(descriptor: str) -> bool:
    """A mapped file stays open while its dataset lives, and a fixture's lives until after this."""
    return "/.hypothesis/" not in descriptor and "/pytest-" not in descriptor
