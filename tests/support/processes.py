"""Starts real processes for tests: each group has a time limit, and is killed as a whole."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

SRC = str(Path(__file__).parents[2] / "src")


def environment(devices: int = 1, **more: str) -> dict[str, str]:
    """That of a program that uses JAX; XLA compiles twice as fast as it would for a user."""
    inherited = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([SRC, *([inherited] if inherited else [])]),
        "JAX_PLATFORMS": "cpu",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "PYTHONWARNINGS": "default",
        **more,
    }


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return int(one.getsockname()[1])


def run_group(commands: list[list[str]], *, timeout_s: float, **options: Any) -> list[str]:
    """Runs commands side by side and gives what each printed.

    If one fails, or the time is up, all are killed and the test fails with their output.
    """
    started: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []
    until = time.monotonic() + timeout_s
    try:
        for command in commands:
            out = tempfile.TemporaryFile()  # noqa: SIM115 (closed below)
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a group of its own, with whatever it starts
                **options,
            )
            started.append((process, out))
        while any(process.poll() is None for process, _ in started):
            failed = any(process.poll() not in (None, 0) for process, _ in started)
            if failed or time.monotonic() > until:
                time.sleep(1)  # let the others say what they have seen
                break
            time.sleep(0.05)
        texts = []
        for _, out in started:
            out.seek(0)
            texts.append(out.read().decode(errors="replace"))
        codes = [process.poll() for process, _ in started]
        if any(codes):
            said = "\n".join(f"--- process {n}:\n{text}" for n, text in enumerate(texts))
            raise AssertionError(f"exit codes {codes} (None: killed after {timeout_s} s)\n{said}")
        assert None not in codes, f"not done after {timeout_s} s:\n" + "\n".join(texts)
        return texts
    finally:
        for process, out in started:
            kill_group(process)
            out.close()


def kill_group(process: subprocess.Popen[Any]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(20)


def run_hosts(count: int, folder: Path, *jobs: str, timeout_s: float = 200) -> None:
    """Runs jobs of `host_worker.py` on ``count`` processes of two devices each."""
    worker = str(Path(__file__).with_name("host_worker.py"))
    port = str(free_port())
    commands = [
        [sys.executable, worker, str(rank), str(count), port, str(folder), *jobs]
        for rank in range(count)
    ]
    texts = run_group(commands, timeout_s=timeout_s, env=environment(devices=2), cwd=folder)
    for text in texts:
        assert f"done: {' '.join(jobs)}" in text, text
