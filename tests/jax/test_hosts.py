"""Several real processes with `jax.distributed`, two CPU devices each."""

from __future__ import annotations

from processes import run_hosts


def test_processes_of_jax_distributed(tmp_path):
    """4, 2, 1, 2 processes, each with the global batches that one process makes alone.

    Each group restores what the last one saved (Orbax v1 and classic), and saves anew.
    """
    run_hosts(4, tmp_path, "streams", "trees", "mistakes", "save:0")
    run_hosts(2, tmp_path, "streams", "trees", "mistakes", "fleet", "save:10")
    run_hosts(1, tmp_path, "save:20")
    run_hosts(2, tmp_path, "save:30")
