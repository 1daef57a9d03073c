"""Wide numbers become what JAX holds."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import jax
import numpy as np
import pytest

import loaderx as lx
from chunk_sources import Chunks, reads
from devices import rows
from loaderx import DataLoader, Dataset
from loaderx.jax.placement import enable_x64
from processes import environment

pytestmark = pytest.mark.foreign  # jax keeps descriptors of its own


def test_narrowing_travels_to_worker_processes_without_jax():
    import cloudpickle

    class Recording:
        def session(self, work: Any) -> Any:
            self.work = work
            return lx.engines.Inline().session(work)

    engine = Recording()
    iter(DataLoader(Dataset.range(8).batch(4), sharding=jax.devices()[0], engine=engine))
    code = (
        "import sys, cloudpickle; from loaderx.memory import Pool\n"
        "work = cloudpickle.loads(sys.stdin.buffer.read())\n"
        "batch = work((1,), Pool().lend).value\n"
        "print(batch.dtype, batch.tolist(), 'jax' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=cloudpickle.dumps(engine.work),
        capture_output=True, timeout=60, check=True, env=environment(),
    )  # fmt: skip
    assert done.stdout.decode().split() == ["int32", "[4,", "5,", "6,", "7]", "False"]


def test_wide_numbers_become_what_jax_holds():
    wide = {"i": np.int64, "u": np.uint64, "f": np.float64, "c": np.complex128, "b": np.int8}
    dataset = Dataset.from_arrays({k: np.arange(8).astype(t) for k, t in wide.items()}).batch(4)
    with DataLoader(dataset, sharding=jax.devices()[0]) as loader:
        batch = next(iter(loader))
    assert {name: str(leaf.dtype) for name, leaf in batch.items()} == {
        "i": "int32", "u": "uint32", "f": "float32", "c": "complex64", "b": "int8",
    }  # fmt: skip
    with enable_x64(True), DataLoader(dataset, sharding=jax.devices()[0]) as loader:
        batch = next(iter(loader))
        assert {name: leaf.dtype for name, leaf in batch.items()} == wide


def test_what_counts_is_the_setting_when_the_loader_was_made():
    dataset = Dataset.from_arrays(x=np.arange(32) + 2**40).batch(4)
    with enable_x64(True):
        wide = iter(DataLoader(dataset, sharding=rows("data", shape=(4,))))
        next(wide)
    for step in range(1, 4):  # not so in the caller's thread any more
        batch = next(wide)["x"]
        assert batch.dtype == batch.addressable_data(0).dtype == np.asarray(batch).dtype == np.int64
        assert np.asarray(batch).tolist() == [2**40 + 4 * step + n for n in range(4)]
    narrow = iter(DataLoader(dataset.map(lambda b: b["x"] - 2**40), sharding=jax.devices()[0]))
    with enable_x64(True):
        assert [next(narrow).dtype for _ in range(3)] == [np.int32] * 3


def keys(batch: Any) -> Any:
    return jax.random.split(jax.random.key(0), 2)


class Tensor:
    """An array of another library."""

    dtype = "its own"

    def __init__(self, array: Any) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.array


@pytest.mark.parametrize("engine", ["inline", "threads"])
def test_an_integer_that_does_not_fit_is_an_error(engine):
    dataset = Dataset.from_arrays(id=np.array([1, 2, 2**40, 3])).batch(2)
    with DataLoader(dataset, sharding=jax.devices()[0], engine=engine) as loader:
        iterator = iter(loader)
        assert next(iterator)["id"].tolist() == [1, 2]
        with pytest.raises(lx.StackError) as caught:
            next(iterator)
    assert str(caught.value) == (
        "leaf 'id' holds 1099511627776, which does not fit into int32, and JAX makes int64 to "
        "int32 unless jax_enable_x64 is set. Set it, or change the numbers in .map(), or leave "
        "them on the host (None in place of a sharding)."
    )
    largest = dataset.map(lambda batch: {"id": batch["id"].max()})  # a number, no array
    with DataLoader(largest, sharding=jax.devices()[0], engine=engine) as loader:
        iterator = iter(loader)
        assert next(iterator)["id"].item() == 2
        with pytest.raises(lx.StackError, match="leaf 'id' holds 1099511627776, which does not"):
            next(iterator)
    for hold in (list, Tensor):  # leaves that become arrays when they are placed
        held = dataset.map(lambda batch, hold=hold: {"id": hold(batch["id"]), "key": keys(batch)})
        with DataLoader(held, sharding=jax.devices()[0], engine=engine) as loader:
            iterator = iter(loader)
            assert next(iterator)["id"].tolist() == [1, 2]
            with pytest.raises(lx.StackError, match="leaf 'id' holds 1099511627776, which does"):
                next(iterator)
    both = Dataset.zip({"a": dataset, "b": dataset.map(lambda batch: batch["id"] % 7)})
    where = {"a": None, "b": jax.devices()[0]}
    with DataLoader(both, sharding=where, engine=engine) as loader:
        assert [batch["a"]["id"].tolist() for batch in loader] == [[1, 2], [2**40, 3]]


def test_no_warning_about_numbers(recwarn):
    with DataLoader(Dataset.range(64).batch(8), sharding=rows("data")) as loader:
        list(loader)
    assert not recwarn.list


def test_windows_of_chunks_that_worker_processes_make(tmp_path):
    log = tmp_path / "log"
    sizes = [9, 4, 11, 5, 7]
    dataset = Dataset.from_source(Chunks(sizes, log)).shuffle(1, block="source", window=12).batch(8)
    expected = [batch["x"].tolist() for batch in dataset]
    log.unlink()
    device = jax.devices()[0]
    with DataLoader(dataset, engine="processes", num_workers=2, sharding=device) as loader:
        batches = list(loader)
    assert [batch["x"].tolist() for batch in batches] == expected
    assert {batch["x"].dtype for batch in batches} == {np.dtype(np.int32)}
    assert reads(log) == dict.fromkeys(range(len(sizes)), 1)
