"""What works without jax, and when it is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from processes import environment

pytestmark = pytest.mark.foreign  # jax keeps descriptors of its own


WITHOUT_JAX = """
import sys
sys.modules["jax"] = None
import numpy as np, loaderx as lx
dataset = lx.Dataset.from_arrays(x=np.arange(10)).shuffle(seed=0).random_keys().batch(5)
with lx.DataLoader(dataset, engine="threads") as loader:
    iterator = iter(loader)
    next(iterator)
    iterator.set_state(lx.merge_states([iterator.get_state()]))
    next(iterator)
for attempt in (lambda: lx.DataLoader(dataset, sharding="gpu"), lambda: lx.jax):
    try:
        attempt()
    except lx.MissingPackageError as error:
        assert isinstance(error, ImportError)
        print(error)
"""


def test_without_jax_the_rest_works_and_the_extra_is_named():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_JAX],
        capture_output=True, text=True, timeout=60, check=False, env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("placing batches on devices needs jax, which cannot be imported")
        assert line.endswith("Write: pip install jax")


def test_jax_is_imported_late():
    code = (
        "import sys, loaderx as lx\n"
        "lx.DataLoader(lx.Dataset.range(4).batch(2))\n"
        "assert 'jax' not in sys.modules and 'loaderx.jax' not in sys.modules\n"
        "assert lx.jax.shard_of is not None and 'jax' in sys.modules\n"
        "assert not hasattr(lx, 'jaxx')"
    )
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True, env=environment())
