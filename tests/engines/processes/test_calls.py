"""How much of loaderx a batch of worker processes goes through in the consumer."""

from __future__ import annotations

import os
import sys

import loaderx
from chains import arrays
from loaderx import DataLoader
from plain import grow

ROOT = os.path.join(os.path.dirname(loaderx.__file__), "")


class Calls:
    """Counts calls of functions of loaderx, and how deep they go."""

    def __init__(self):
        self.count = self.depth = self.deepest = 0

    def __call__(self, frame, event, _):
        if event in ("call", "return") and frame.f_code.co_filename.startswith(ROOT):
            self.count += event == "call"
            self.depth += 1 if event == "call" else -1
            self.deepest = max(self.deepest, self.depth)


def calls_of(function):
    calls = Calls()
    sys.setprofile(calls)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls.count, calls.deepest


def test_a_batch_takes_few_calls_in_the_consumer():
    """The fewest of many batches: some come with times, or wait for a worker to start."""
    dataset = arrays(2000).map(grow).batch(4)
    with DataLoader(dataset, engine="processes", num_workers=2) as loader:
        batches = iter(loader)
        found = [calls_of(lambda: next(batches)) for _ in range(400)]
    assert min(count for count, _ in found) <= 30
    assert min(depth for _, depth in found) <= 8
