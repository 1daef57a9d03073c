"""Streams on several hosts that are processes of their own, resumed on another number of them."""

from __future__ import annotations

import itertools
import json
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import stream_host
from loaderx import merge_states
from oracle import assert_same
from processes import environment

SCRIPT = Path(stream_host.__file__)


def run(folder: Path, name: str, hosts: int, steps: int, source: str, **env: str) -> str:
    """Lets the hosts read together; returns the file of their merged state."""
    children = [
        subprocess.Popen(
            [
                sys.executable, str(SCRIPT), str(host), str(hosts), str(steps), source,
                str(folder / f"{name}{host}.json"), str(folder / f"{name}{host}.npz"),
            ],
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**env),
        )
        for host in range(hosts)
    ]  # fmt: skip
    try:
        for child in children:
            _, errors = child.communicate(timeout=150)
            assert child.returncode == 0, errors
    finally:
        for child in children:
            child.kill()
            child.wait()
    states = [json.loads((folder / f"{name}{host}.json").read_text()) for host in range(hosts)]
    merged = folder / f"{name}.json"
    merged.write_text(json.dumps(merge_states(states)))
    return str(merged)


def batches(folder: Path, name: str, hosts: int, steps: int) -> list[dict[str, np.ndarray]]:
    """The global batches that the hosts read."""
    parts = []
    for host in range(hosts):
        with np.load(folder / f"{name}{host}.npz") as file:
            parts.append(dict(file))
    out: list[dict[str, np.ndarray]] = [{} for _ in range(steps)]
    for key in parts[0]:
        step, _, leaf = key.partition(".")
        out[int(step)][leaf] = np.concatenate([part[key] for part in parts])
    return out


def test_four_processes_then_two_then_one(tmp_path):
    expected = list(itertools.islice(iter(stream_host.dataset()), 18))
    state = "-"
    found = []
    for name, hosts in (("a", 4), ("b", 2), ("c", 1)):
        state = run(tmp_path, name, hosts, 6, state)
        found += batches(tmp_path, name, hosts, 6)
    assert_same(found, expected)


def test_processes_of_jax_distributed(tmp_path):
    """Two processes, then four: each global array holds the rows of the one stream."""
    pytest.importorskip("jax", reason="jax is not installed")
    expected = [
        sum(int(t) * (2 * i + 1) for i, t in enumerate(batch["tokens"].reshape(-1).tolist()))
        % (1 << 32)
        for batch in itertools.islice(iter(stream_host.dataset()), 8)
    ]
    state, found = "-", []
    for name, hosts in (("a", 2), ("b", 4)):
        flags = "--xla_force_host_platform_device_count=2"
        state = run(tmp_path, name, hosts, 4, state, JAX_PORT=free_port(), XLA_FLAGS=flags)
        sums = []
        for host in range(hosts):
            with np.load(tmp_path / f"{name}{host}.npz") as file:
                sums.append(file["sums"].tolist())
        assert all(each == sums[0] for each in sums)
        found += sums[0]
    assert found == expected


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return str(probe.getsockname()[1])
