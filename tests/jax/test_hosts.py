"""Several real processes with `jax.distributed`, two CPU devices each."""

from __future__ import annotations

import pytest

from processes import run_hosts


@pytest.mark.parametrize("count", [2, 4])
def test_global_batches_equal_those_of_one_process(count, tmp_path):
    run_hosts(count, tmp_path, "streams", "trees", "mistakes")


def test_any_number_of_processes_goes_on_where_others_stopped(tmp_path):
    """4, 2, 1, 4: each restores what the last one saved (Orbax v1 and classic) and saves anew."""
    for number, count in enumerate([4, 2, 1, 4]):
        run_hosts(count, tmp_path, f"save:{10 * number}")
