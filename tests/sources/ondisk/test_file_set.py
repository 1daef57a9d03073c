"""Files by number: mapped when needed, few at a time, and known again."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest

from descriptors import few_descriptors, room
from inside import maps_of
from loaderx.errors import FileError
from loaderx.sources.columns.elements import file_bytes
from loaderx.sources.files.byte_ranges import gather_rows
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.files.file_system import LocalFileSystem
from loaderx.sources.files.parts import Located, in_places
from loaderx.sources.mapping import living_maps, map_array


@pytest.fixture
def paths(tmp_path):
    made = [str(tmp_path / f"{n}.bin") for n in range(40)]
    for number, path in enumerate(made):
        with open(path, "wb") as file:
            file.write(bytes(range(number)))
    return made


def test_data_of_many_files_with_few_descriptors(paths):
    several = paths * (room() // len(paths) + 1)
    with few_descriptors():
        files = FileSet(several)
        for _ in range(2):
            for number in range(len(several)):
                assert files.data(number).tolist() == list(range(number % 40))


@pytest.fixture
def mapped(monkeypatch):
    """The files that were mapped, in order."""
    found = []
    plain = LocalFileSystem.map

    def counting(self, path, identity):
        found.append(path)
        return plain(self, path, identity)

    monkeypatch.setattr(LocalFileSystem, "map", counting)
    return found


def test_files_that_are_read_in_turn_are_mapped_once(paths, mapped):
    several = paths * (room() // len(paths) + 1)
    with few_descriptors():
        files = FileSet(several)
        for number in [*range(len(several))] * 2:
            files.data(number)
    assert mapped == several


def test_maps_keep_no_descriptors(paths):
    files = FileSet(paths)
    before = len(os.listdir("/proc/self/fd"))
    kept = [files.data(number) for number in range(40)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert all(array.tolist() == list(range(n)) for n, array in enumerate(kept))


def test_where_maps_take_descriptors_those_who_read_in_turn_find_some(paths, mapped, monkeypatch):
    monkeypatch.setattr("loaderx.sources.files.file_set.keeps_descriptors", lambda: True)
    monkeypatch.setattr("loaderx.sources.files.file_set.MOST_HELD", 24)
    files = FileSet(paths)
    for number in [*range(40)] * 10:
        files.data(number)
        assert len(maps_of(files)) <= 24
    assert len(mapped) < 350


def test_a_process_has_a_limited_number_of_maps(paths, mapped, monkeypatch):
    monkeypatch.setattr("loaderx.sources.files.file_set.FEWEST_MAPS", 8)
    monkeypatch.setattr("loaderx.sources.files.file_set.MOST_LIVING", living_maps() + 24)
    files = FileSet(paths)
    for number in [*range(40)] * 2:
        assert files.data(number).tolist() == list(range(number))
        assert len(maps_of(files)) <= 25  # an empty file is not mapped
    assert 40 < len(mapped) < 80


def test_what_a_file_has_lost_is_not_mapped(tmp_path):
    (tmp_path / "a.bin").write_bytes(bytes(10))
    with (
        open(tmp_path / "a.bin", "rb") as file,
        pytest.raises(ValueError, match="11 bytes are expected, there are 10"),
    ):
        map_array(file, np.dtype(np.uint8), (11,), holding=False)


def test_arrays_stay_when_their_map_is_forgotten(paths):
    files = FileSet(paths)
    kept = [files.data(number) for number in range(40)]
    assert all(array.tolist() == list(range(n)) for n, array in enumerate(kept))
    assert not kept[3].flags.writeable


def test_a_file_that_has_changed(paths):
    files = FileSet(paths)
    with open(paths[5], "ab") as file:
        file.write(b"more")
    with pytest.raises(FileError, match=r"5.bin has grown from 5 to 9 bytes since the dataset"):
        files.data(5)
    os.remove(paths[6])
    with pytest.raises(FileError, match=r"there is no file .*6.bin"):
        files.data(6)


def test_pickles_hold_paths_and_sizes(paths):
    files = FileSet(paths)
    assert pickle.loads(pickle.dumps(files)).data(7).tolist() == list(range(7))
    with open(paths[5], "ab") as file:
        file.write(b"more")
    with pytest.raises(FileError, match=r"5.bin has 9 bytes, and had 5"):
        pickle.loads(pickle.dumps(files))


def test_runs_of_the_bytes_of_files(paths):
    found = file_bytes(FileSet(paths[4:7]))
    parts, starts, stops = np.array([0, 0, 2, 2]), np.array([0, 1, 2, 5]), np.array([1, 4, 5, 6])
    expected = [b"\0", b"\1\2\3", b"\2\3\4", b"\5"]
    for order in ([0, 1, 2, 3], [3, 0, 3, 1, 2], [2], []):
        these = np.array(order, np.int64)
        at = Located(parts[these], starts[these])
        runs = [(one.places, one.contents()) for one in found.runs(at, stops[these])]
        assert list(in_places(len(order), runs)) == [expected[i] for i in order]


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 5)])
@pytest.mark.parametrize("others", [0, 2])
def test_runs_outside_of_their_file(paths, start, stop, others):
    found = file_bytes(FileSet(paths[4:7]), lambda part: FileError(f"of {part}"))
    at = Located(np.array([*[2] * others, 0]), np.array([*[0] * others, start]))
    with pytest.raises(FileError, match="of 0"):
        list(found.runs(at, np.array([*[1] * others, stop])))


@pytest.mark.parametrize("shape", [(3,), (2, 2), (), (0,), (9000,)])
@pytest.mark.parametrize("dtype", ["u1", "<i4", ">f8"])
def test_rows_at_any_address(shape, dtype):
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, 100_000).astype(np.uint8)
    out = np.empty((5, *shape), dtype)
    width = out[0].nbytes
    addresses = rng.integers(0, len(data) - width + 1, 5)
    addresses[0], addresses[1] = 0, len(data) - width
    gather_rows(data, addresses, out)
    for number, address in enumerate(addresses):
        assert out[number : number + 1].tobytes() == data[address : address + width].tobytes()
