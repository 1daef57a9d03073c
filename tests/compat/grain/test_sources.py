from __future__ import annotations

import struct
import subprocess
import sys

import numpy as np
import pytest

import loaderx.compat.grain as grain
from loaderx.compat.grain import experimental, sources


def test_range():
    source = sources.RangeDataSource(10, 0, -3)
    assert [source[i] for i in range(len(source))] == [10, 7, 4, 1]
    assert repr(source) == "RangeDataSource(start=10, stop=0, step=-3)"
    with pytest.raises(IndexError, match="there is no record 4: the source has 4"):
        source[4]
    with pytest.raises(AssertionError, match="`step` must not be 0"):
        sources.RangeDataSource(0, 1, 0)


def test_shared_memory_is_a_list():
    source = sources.SharedMemoryDataSource([3, "a", None], name="mine")
    assert list(source) == [3, "a", None]
    assert str(source) == "InMemoryDataSource(name=mine, len=3)"
    source.close()
    source.unlink()
    with pytest.raises(ValueError, match="cannot be attached to by its name"):
        sources.SharedMemoryDataSource(name="mine")


def test_array_record_needs_files(tmp_path):
    with pytest.raises(ValueError, match="name at least one file"):
        sources.ArrayRecordDataSource([])
    with pytest.raises(ValueError, match="must be a path"):
        sources.ArrayRecordDataSource(3)
    with pytest.raises(RuntimeError, match="there is no file"):
        sources.ArrayRecordDataSource(str(tmp_path / "missing"))
    (tmp_path / "bad.array_record").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"bad.array_record"):
        sources.ArrayRecordDataSource(str(tmp_path / "bad.array_record"))


def write_tfrecords(path, records):
    path.write_bytes(
        b"".join(struct.pack("<QI", len(r), 0) + r + struct.pack("<I", 0) for r in records)
    )
    return str(path)


def test_tfrecords(tmp_path):
    path = write_tfrecords(tmp_path / "a.tfrecord", [b"1", b"", b"333"])
    ds = experimental.TFRecordIterDataset(path)
    assert list(ds) == [b"1", b"", b"333"]
    iterator = iter(ds)
    next(iterator)
    state = iterator.get_state()
    assert state == {"reader_offset": 17}
    other = iter(ds)
    other.set_state(state)
    assert list(other) == [b"", b"333"]


@pytest.mark.parametrize("cut", [1, 13, 16])
def test_tfrecords_that_are_cut_short(tmp_path, cut):
    path = write_tfrecords(tmp_path / "a.tfrecord", [b"1"])
    whole = (tmp_path / "a.tfrecord").read_bytes()
    (tmp_path / "a.tfrecord").write_bytes(whole[:cut])
    with pytest.raises(ValueError, match="the record at byte 0 is cut short"):
        list(experimental.TFRecordIterDataset(path))


def test_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    paths = []
    for k in range(2):
        paths.append(str(tmp_path / f"{k}.parquet"))
        pq.write_table(pa.table({"x": [10 * k + i for i in range(5)]}), paths[-1], row_group_size=2)
    one = experimental.ParquetIterDataset(paths[0])
    assert [int(row["x"]) for row in one] == [0, 1, 2, 3, 4]
    experimental.assert_equal_output_after_checkpoint(one)
    both = experimental.ParquetIterDataset(paths)
    assert [int(row["x"]) for row in both] == [0, 10, 1, 11, 2, 12, 3, 13, 4, 14]
    both.set_slice(slice(1, 2))
    assert [int(row["x"]) for row in both] == [10, 11, 12, 13, 14]


@pytest.mark.foreign
def test_device_put():
    jax = pytest.importorskip("jax")
    ds = grain.MapDataset.range(6).map(np.float32).batch(2).to_iter_dataset()
    placed = experimental.device_put(ds, jax.devices()[0])
    iterator = iter(placed)
    batches = list(iterator)
    iterator.close()
    assert all(isinstance(batch, jax.Array) for batch in batches)
    assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5]]


def test_nothing_heavy_is_imported():
    code = """
import sys
import loaderx.compat.grain as grain
sampler = grain.IndexSampler(8, grain.NoSharding(), shuffle=True, num_epochs=1, seed=0)
loader = grain.DataLoader(data_source=range(8), sampler=sampler, operations=[grain.Batch(2)])
assert len(list(loader)) == 4
grain.checkpoint.CheckpointHandler()
heavy = {"jax", "orbax", "pyarrow", "array_record", "grain"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)
