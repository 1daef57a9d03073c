"""A cluster of two raylets on this machine, for all tests of Ray."""

from __future__ import annotations

import contextlib
import os

import pytest

os.environ["RAY_AUTH_MODE"] = "disabled"  # `Cluster` gives other drivers no token

import ray
from ray.cluster_utils import Cluster

from loaderx.engines.elsewhere import worker_memory
from tests.owners.ray.waits import WAITS

CPUS = 4  # of each raylet; Ray counts them, the machine need not have them


class TwoRaylets:
    """The head and another node, which tests may kill."""

    def __init__(self):
        head = {"num_cpus": CPUS, "resources": {"head": CPUS}, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.add_node()

    def add_node(self):
        self.other = self.cluster.add_node(num_cpus=CPUS, resources={"other": CPUS})
        self.cluster.wait_for_nodes()

    def kill_node(self):
        """Kills the other node, as a machine that fails."""
        self.cluster.remove_node(self.other, allow_graceful=False)


@pytest.fixture(scope="session")
def raylets(tmp_path_factory):
    os.environ["LOADERX_CACHE"] = str(tmp_path_factory.getbasetemp() / "cache")  # for actors
    found = TwoRaylets()
    ray.init(address=found.cluster.address, logging_level="ERROR", log_to_driver=False)
    yield found
    ray.shutdown()
    with contextlib.suppress(ValueError):
        found.cluster.shutdown()


@pytest.fixture(autouse=True)
def _connected(raylets):
    """Every test of this folder has the cluster."""


@pytest.fixture
def other_machine(monkeypatch):
    """As if workers were on another machine: their memory cannot be read."""
    monkeypatch.setattr(worker_memory, "readv", None)


def pytest_terminal_summary(terminalreporter):
    if WAITS.faults:
        terminalreporter.line(str(WAITS))
