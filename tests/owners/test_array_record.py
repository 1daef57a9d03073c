"""ArrayRecord: the bytes that its own library gives, and its objects."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from array_record_examples import FILES, record, unpacked
from loaderx import DataLoader, Dataset

pytest.importorskip("array_record", reason="array_record is not installed")
pytestmark = [pytest.mark.owners, pytest.mark.foreign]


@pytest.mark.parametrize("name", [name for name in FILES if name != "empty"])
def test_the_same_bytes(name, tmp_path):
    from array_record.python.array_record_module import ArrayRecordReader

    path = unpacked(name, tmp_path)
    reader = ArrayRecordReader(str(path))
    theirs = reader.read_all()
    reader.close()
    ours = Dataset.open(path)
    assert [one["data"] for one in ours] == theirs == [*map(record, range(FILES[name][0]))]
    with DataLoader(ours.shuffle(1).batch(4), engine="processes", num_workers=2) as loader:
        found = sorted(data for batch in loader for data in batch["data"])
    assert found == sorted(theirs)
    again = pickle.loads(pickle.dumps(ours))
    assert again[3] == ours[3]


@pytest.mark.parametrize("options", ["group_size:1", "group_size:5", "group_size:1,uncompressed"])
def test_records_of_all_sizes(options, tmp_path):
    from array_record.python.array_record_module import ArrayRecordWriter

    drawn = np.random.default_rng(0)
    sizes = [0, 1, 65_471, 65_472, 65_473, 65_536, 200_000, *drawn.integers(0, 30_000, 60)]
    records = [drawn.bytes(int(size)) for size in sizes]
    writer = ArrayRecordWriter(str(tmp_path / "x.arrayrecord"), options)
    for data in records:
        writer.write(data)
    writer.close()
    assert [one["data"] for one in Dataset.open(tmp_path / "x.arrayrecord")] == records


def test_data_source_objects(tmp_path):
    from array_record.python import array_record_data_source as library

    paths = [str(unpacked(name, tmp_path)) for name in ("zstd", "groups", "transposed")]
    for given in (paths, f"{paths[0]}[3:9]", [f"{paths[0]}[3:9]", paths[1], f"{paths[0]}[0:2]"]):
        source = library.ArrayRecordDataSource(given)
        dataset = Dataset.from_source(source)
        assert "ArrayRecordDataSource" in repr(dataset)
        assert list(dataset) == [source[index] for index in range(len(source))]
        assert list(dataset.shuffle(0)) != list(dataset)
        assert sorted(dataset.shuffle(0)) == sorted(dataset)
    opened = Dataset.open(paths)
    whole = Dataset.from_source(library.ArrayRecordDataSource(paths))
    assert list(whole) == [record["data"] for record in opened]
