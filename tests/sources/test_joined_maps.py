"""Arrays of several mapped files as one array."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaderx.sources.columns import joined_parts as module
from loaderx.sources.columns.joined_parts import joined_maps

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux can join maps")

kinds = st.tuples(
    st.sampled_from([np.bool_, np.uint8, np.int16, np.float32, np.complex128]),
    st.lists(st.integers(1, 70), max_size=2).map(tuple),
)


def written(folder, dtype, shape, counts):
    """Mapped files, one in each part."""
    maps = []
    for part, count in enumerate(counts):
        size = count * int(np.prod(shape)) * np.dtype(dtype).itemsize
        data = np.random.default_rng(part).integers(0, 2, size, np.uint8)
        np.save(folder / f"{part}.npy", data.view(dtype).reshape(count, *shape))
        path = folder / f"{part}.npy"
        maps.append(np.load(path, mmap_mode="r") if count else np.empty((0, *shape), dtype))
    return maps


def maps_of(folder):
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if str(folder) in line]


@ON_LINUX
@settings(deadline=None)
@given(kinds, st.lists(st.integers(0, 300), max_size=6))
def test_every_row_is_where_it_is_said_to_be(tmp_path_factory, kind, counts):
    parts = written(tmp_path_factory.mktemp("maps"), *kind, counts)
    found = joined_maps(parts.__getitem__, np.array(counts, np.int64))
    if np.count_nonzero(counts) < 2:
        assert found is None
        return
    assert not found.rows.flags.writeable
    for start, part in zip(found.starts.tolist(), parts, strict=True):
        np.testing.assert_array_equal(found.rows[start : start + len(part)], part)


@ON_LINUX
def test_the_files_are_closed_and_the_pages_given_back(tmp_path):
    parts = written(tmp_path, np.uint8, (3000,), [50, 50])
    descriptors = len(os.listdir("/proc/self/fd"))
    found = joined_maps(parts.__getitem__, np.array([50, 50]))
    want = np.concatenate(parts)
    assert len(maps_of(tmp_path)) == 4
    del parts
    gc.collect()
    assert len(maps_of(tmp_path)) == 2
    assert len(os.listdir("/proc/self/fd")) == descriptors - 2
    rows = np.concatenate([found.rows[start : start + 50] for start in found.starts.tolist()])
    np.testing.assert_array_equal(rows, want)
    del found
    gc.collect()
    assert maps_of(tmp_path) == []


@ON_LINUX
def test_parts_are_not_kept_while_others_are_mapped(tmp_path):
    """A part takes a descriptor."""
    written(tmp_path, np.uint8, (300,), [20] * 30)
    most = 0

    def part(number):
        nonlocal most
        found = np.load(tmp_path / f"{number}.npy", mmap_mode="r")
        most = max(most, len(os.listdir("/proc/self/fd")))
        return found

    before = len(os.listdir("/proc/self/fd"))
    assert joined_maps(part, np.array([20] * 30)) is not None
    assert most <= before + 4


def test_what_cannot_be_joined(tmp_path, monkeypatch):
    parts = written(tmp_path, np.uint8, (300,), [20, 30])
    counts = np.array([20, 30])

    def joined(*arrays):
        return joined_maps(arrays.__getitem__, counts)

    assert (joined(*parts) is None) == (sys.platform != "linux")
    assert joined(np.array(parts[0]), parts[1]) is None  # in memory
    assert joined(parts[0], parts[1][:29]) is None  # not as many as were promised
    assert joined(parts[0], parts[1][:, ::-1]) is None
    assert joined(parts[0], parts[1].view(np.int8)) is None
    np.save(tmp_path / "f.npy", np.asfortranarray(parts[1]))
    assert joined(parts[0], np.load(tmp_path / "f.npy", mmap_mode="r")) is None
    with open(tmp_path / "long.npy", "wb") as file:  # its rows begin elsewhere
        file.write(b"\0" * 1000 + parts[1].tobytes())
    odd = np.memmap(tmp_path / "long.npy", np.uint8, "r", 1000, (30, 300))
    assert joined(parts[0], odd) is None
    private = np.load(tmp_path / "1.npy", mmap_mode="c")  # not shared with the file
    assert joined(parts[0], private) is None
    monkeypatch.setattr(module, "MOST_BYTES", 1000)
    assert joined(*parts) is None
    monkeypatch.undo()
    monkeypatch.setattr(module, "MOST_MAPS", 1)
    assert joined(*parts) is None
    monkeypatch.setattr(module, "MOST_MAPS", sum(module.maps_taken) + 3)  # of all that are in use
    first = joined(*parts)
    assert (first is None) == (sys.platform != "linux")
    assert joined(*parts) is None
    del first
    gc.collect()
    assert (joined(*parts) is None) == (sys.platform != "linux")


def test_a_system_that_cannot_do_it(tmp_path, monkeypatch):
    parts = written(tmp_path, np.uint8, (300,), [20, 30])
    module.find_mremap.cache_clear()
    monkeypatch.setattr(sys, "platform", "darwin")
    try:
        assert joined_maps(parts.__getitem__, np.array([20, 30])) is None
    finally:
        module.find_mremap.cache_clear()
