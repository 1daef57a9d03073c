"""Streams on several hosts that are processes of their own, resumed on another number of them."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

import stream_host
from loaderx import merge_states
from oracle import assert_same

SCRIPT = Path(stream_host.__file__)


def run(folder: Path, name: str, hosts: int, steps: int, source: str) -> tuple[list, str]:
    """The global batches that the hosts read together, and the file of their merged state."""
    children = [
        subprocess.Popen(
            [
                sys.executable, str(SCRIPT), str(host), str(hosts), str(steps), source,
                str(folder / f"{name}{host}.json"), str(folder / f"{name}{host}.npz"),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        for host in range(hosts)
    ]  # fmt: skip
    for child in children:
        _, errors = child.communicate(timeout=120)
        assert child.returncode == 0, errors
    parts = [np.load(folder / f"{name}{host}.npz") for host in range(hosts)]
    batches: list[dict[str, np.ndarray]] = [{} for _ in range(steps)]
    for key in parts[0].files:
        step, _, leaf = key.partition(".")
        batches[int(step)][leaf] = np.concatenate([part[key] for part in parts])
    for part in parts:
        part.close()
    states = [json.loads((folder / f"{name}{host}.json").read_text()) for host in range(hosts)]
    merged = folder / f"{name}.json"
    merged.write_text(json.dumps(merge_states(states)))
    return batches, str(merged)


def test_four_processes_then_two_then_eight_lanes_on_one(tmp_path):
    expected = list(itertools.islice(iter(stream_host.dataset()), 18))
    first, state = run(tmp_path, "a", 4, 6, "-")
    second, state = run(tmp_path, "b", 2, 6, state)
    third, _ = run(tmp_path, "c", 1, 6, state)
    assert_same([*first, *second, *third], expected)
