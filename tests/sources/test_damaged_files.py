"""Files that are damaged, or made to harm: each is refused with a `FileError` that names it."""

from __future__ import annotations

import gzip
import io
import os
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest

import loaderx as lx
from loaderx import Dataset, FileError, LoaderxError, LoaderxWarning
from loaderx.sources import Tokens

X = np.arange(24.0).reshape(6, 4)


def npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def header(shape, descr="'<f8'", *, version=(1, 0), fortran="False", data=b""):
    text = f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n".encode()
    length = struct.pack("<H" if version == (1, 0) else "<I", len(text))
    return b"\x93NUMPY" + bytes(version) + length + text + data


def refused(path, content, message, keys=None):
    path.write_bytes(content)
    with pytest.raises(FileError, match=message) as caught:
        Dataset.open(path, columns=keys)
    assert path.name in str(caught.value)


# .npy ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["C", "F"])
def test_names_of_fields_in_any_script(order, tmp_path):
    """Such files have version 3.0, whose header is UTF-8."""
    kind = [("名前", "f4"), ("é", "i2", (2,)), ("a'b\\c\\ü", "S3")]
    x = np.zeros((4, 3), kind, order=order)
    x["名前"] = np.arange(12).reshape(4, 3)
    with pytest.warns(UserWarning, match="format 3.0"):
        np.save(tmp_path / "x.npy", x)
    assert (tmp_path / "x.npy").read_bytes()[6] == 3
    dataset = Dataset.open(tmp_path / "x.npy")
    assert dataset.element_spec["x"].dtype == x.dtype
    assert np.array_equal(dataset.batch(4)[0]["x"], x)


def test_version_2(tmp_path):
    with (tmp_path / "x.npy").open("wb") as file:
        np.lib.format.write_array(file, X, version=(2, 0))
    assert np.array_equal(Dataset.open(tmp_path / "x.npy").batch(6)[0]["x"], X)


@pytest.mark.parametrize("version", [(0, 0), (1, 1), (4, 0), (255, 255)])
def test_versions_that_do_not_exist(version, tmp_path):
    said = rf"has version {version[0]}\.{version[1]} of the .npy format; 1\.0, 2\.0 and 3\.0"
    refused(tmp_path / "x.npy", header("(2,)", version=version, data=bytes(16)), said)


@pytest.mark.parametrize(
    ("shape", "descr", "message"),
    [
        ("(-1,)", "'|V0'", "has elements of no bytes"),  # ended the process: SIGFPE
        ("(10**9,)", "'|V0'", "is damaged or cut off"),
        ("(1000000000,)", "'|S0'", r"has elements of no bytes \(dtype \|S0\): there is no data"),
        ("(4,)", "[]", "has elements of no bytes"),
        ("(4,)", "('<f8', (2,))", r"is damaged: its header has the dtype \('<f8', \(2,\)\)"),
        ("(2,)", "'<M8[0s]'", "is damaged: its header has the dtype"),
        ("(2,)", "[('a', '<m8[0s]', (2,))]", "is damaged: its header has the dtype"),
        ("(-1,)", "'<f8'", r"is damaged: its header has the shape \(-1,\)"),
        ("(-2, -1)", "'<f8'", r"is damaged: its header has the shape \(-2, -1\)"),
        ("(True,)", "'<f8'", r"is damaged: its header has the shape \(True,\)"),
        ("(2.0,)", "'<f8'", "is damaged or cut off: shape is not valid"),
        ("(2, 0, 4611686018427387904)", "'<f8'", "is damaged: its header has the shape"),
        ("(4611686018427387904, 4)", "'<f8'", r"is cut off: 1475739525896764130\d\d bytes"),
        ("(9223372036854775808,)", "'|u1'", "is cut off"),
        ("(2,)", "'O'", "holds Python objects"),
        ("(2,)", "'T'", "holds Python objects|is damaged"),
        ("(2,)", "'<f7'", "is damaged or cut off"),
        ("(2,)", "[('a', '<f8'), ('a', '<f8')]", "is damaged or cut off"),
        ("(2,)", "[('a',)]", "is damaged or cut off"),
        ("(2,)", "3", "is damaged or cut off"),
        ("(2,)", "'<U4611686018427387904'", "is damaged or cut off"),
        ("(" * 300 + ")" * 300, "'<f8'", "is damaged or cut off"),
        ("-" * 5000 + "1", "'<f8'", "is damaged or cut off"),
        ("(2,)", "[('a', " * 60 + "'<f8'" + ")]" * 60, "is cut off|is damaged"),
        ("(2,)}, {", "'<f8'", "is damaged or cut off"),
        ("(2,", "'<f8'", "is damaged or cut off"),
        ("(2,) \x00", "'<f8'", "is damaged or cut off"),
    ],
    ids=range(27),
)
def test_headers_that_make_no_sense(shape, descr, message, tmp_path):
    refused(tmp_path / "x.npy", header(shape, descr), message)


def test_more_axes_than_numpy_has(tmp_path):
    content = header("(" + "1, " * 80 + ")", data=bytes(8))
    refused(tmp_path / "x.npy", content, "is damaged: its header has the shape")


def test_headers_that_are_too_long(tmp_path):
    long = header("(2,)" + " " * 20_000, data=bytes(16))
    refused(tmp_path / "x.npy", long, r"has a header of 20\d+ bytes, which no array needs")
    cut = b"\x93NUMPY\x02\x00\xff\xff\xff\xff"
    refused(tmp_path / "x.npy", cut, "has a header of 4294967295 bytes")
    refused(tmp_path / "x.npy", npy(X)[:60], "is cut off: it ends within its header")
    refused(tmp_path / "x.npy", npy(X)[:9], "is damaged or cut off")


def test_headers_of_another_encoding(tmp_path):
    content = header("(2,)", "[('\xff', '<f8')]", version=(3, 0), data=bytes(16))
    refused(tmp_path / "x.npy", content.replace("\xff".encode(), b"\xff"), "x.npy is damaged")


def test_an_npy_whose_data_look_like_a_zip_archive(tmp_path):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("y.npy", npy(np.zeros(3)))
    x = np.frombuffer(out.getvalue(), np.uint8)
    np.save(tmp_path / "x.npy", x)
    assert np.array_equal(Dataset.open(tmp_path / "x.npy").batch(len(x))[0]["x"], x)


# .npz ---------------------------------------------------------------------------------------------


def npz(members, method=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return out.getvalue()


@pytest.fixture(
    params=[zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA],
    ids=["stored", "deflate", "bzip2", "lzma"],
)
def method(request):
    return request.param


def test_every_way_to_pack(method, tmp_path):
    (tmp_path / "x.npz").write_bytes(npz([("x.npy", npy(X)), ("y.npy", npy(X.T.copy().T))], method))
    dataset = Dataset.open(tmp_path / "x.npz")
    batch = dataset.batch(6)[0]
    assert np.array_equal(batch["x"], X)
    assert np.array_equal(batch["y"], X)


def test_a_warning_of_the_size_is_a_warning_also_where_it_is_an_error(tmp_path):
    (tmp_path / "x.npz").write_bytes(promising(10**10, zipfile.ZIP_BZIP2))
    for opened in (Dataset.open, lambda path: Dataset(path, "x", "y")):
        with pytest.raises(LoaderxWarning, match=r"x\.npz is compressed"):  # not a FileError
            opened(tmp_path / "x.npz")


def promising(count, method):
    """An archive whose array x says that it has so many numbers, and y a few."""
    members = [("x.npy", header(f"({count},)", data=bytes(80))), ("y.npy", npy(X))]
    content = npz(members, method)
    shift = content.index(b"PK\x01\x02")
    zip64 = struct.pack("<HHQ", 1, 8, 10**12)
    content = (
        content[: shift + 24] + b"\xff" * 4 + content[shift + 28 : shift + 30]
        + struct.pack("<H", len(zip64)) + content[shift + 32 : shift + 51] + zip64
        + content[shift + 51 :]
    )  # fmt: skip
    end = content.index(b"PK\x05\x06")
    size = struct.unpack_from("<I", content, end + 12)[0] + len(zip64)
    return content[: end + 12] + struct.pack("<I", size) + content[end + 16 :]


def test_members_that_ask_for_their_neighbours_bytes(method, tmp_path):
    """The second array must not be seen through the first."""
    secret = npy(np.full(100, 7.0))
    content = npz([("x.npy", header("(50,)", data=bytes(80))), ("y.npy", secret)], method)
    refused(tmp_path / "x.npz", content, r"x\.npz, array 'x' is cut off: \d+ bytes are expected")
    shift = content.rindex(b"PK\x01\x02", 0, content.rindex(b"PK\x01\x02"))
    for at in (20, 24):  # what the directory says of the first member, packed and not
        content = content[: shift + at] + struct.pack("<I", 500) + content[shift + at + 4 :]
    refused(tmp_path / "x.npz", content, r"x\.npz, array 'x' is damaged", ["x"])


def test_members_that_promise_more_than_they_can_hold(tmp_path):
    content = npz([("x.npy", header("(100000000,)", data=bytes(80)))], zipfile.ZIP_DEFLATED)
    shift = content.index(b"PK\x01\x02")
    content = content[: shift + 24] + struct.pack("<I", 10**9) + content[shift + 28 :]
    refused(tmp_path / "x.npz", content, r"array 'x' is damaged: \d+ bytes of the archive cannot")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA], ids=["bzip2", "lzma"])
def test_members_that_end_early_take_no_memory(method, tmp_path):
    """How much these may hold is not known before they are unpacked."""
    (tmp_path / "x.npz").write_bytes(promising(10**10, method))
    with pytest.warns(LoaderxWarning) as caught:
        dataset = Dataset.open(tmp_path / "x.npz", columns=["x"])
    (warning,) = caught
    assert warning.filename == __file__
    assert str(warning.message) == (
        f"{tmp_path / 'x.npz'} is compressed: its arrays are read whole into memory (80.0 GB) when "
        "they are first used. Save them with np.savez instead of np.savez_compressed to have them "
        "mapped."
    )
    with pytest.raises(LoaderxError, match=r"x\.npz, array 'x' is (cut off: 80000000000|damaged)"):
        dataset[0]


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA], ids=["bzip2", "lzma"])
def test_members_are_unpacked_as_far_as_the_array_goes(method, tmp_path):
    """A few bytes of these may hold gigabytes; here it is 20 MB."""
    content = header("(4,)", data=np.arange(4.0).tobytes()) + bytes(20 * 10**6)
    (tmp_path / "x.npz").write_bytes(npz([("x.npy", content)], method))
    tracemalloc.start()
    try:
        assert Dataset.open(tmp_path / "x.npz")[2]["x"] == 2.0
        assert tracemalloc.get_traced_memory()[1] < 10**7  # LZMA takes 8 MB
    finally:
        tracemalloc.stop()


def test_a_window_larger_than_the_array_is_not_made(tmp_path):
    content = bytearray(npz([("x.npy", npy(X))], zipfile.ZIP_LZMA))
    place = content.index(b"x.npy") + 5 + 5  # behind the name, the version and two lengths
    content[place : place + 4] = b"\xff" * 4
    (tmp_path / "x.npz").write_bytes(content)
    dataset = Dataset.open(tmp_path / "x.npz")
    assert np.array_equal(dataset.batch(6)[0]["x"], X)


def test_two_members_of_one_name(tmp_path):
    with pytest.warns(UserWarning, match="Duplicate name"):
        content = npz([("x.npy", npy(X)), ("x.npy", npy(X + 1))])
    refused(tmp_path / "x.npz", content, r"x\.npz has two arrays with the name 'x\.npy'")


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (8, b"\x01", "password required"),  # a flag: encrypted
        (8, b"\x20", "compressed patched data"),
        (10, b"\x63\x00", "compression method is not supported"),
        (42, b"\xff\xff\x00\x00", "is damaged"),  # where the member is said to be
        (28, b"\x04\x00", "Truncated central directory"),  # the length of its name
    ],
)
def test_directories_that_are_damaged(at, value, message, tmp_path):
    content = npz([("x.npy", npy(X))], zipfile.ZIP_DEFLATED)
    shift = content.index(b"PK\x01\x02") + at
    content = content[:shift] + value + content[shift + len(value) :]
    refused(tmp_path / "x.npz", content, message)


@pytest.mark.parametrize("method", [8, 12, 14], ids=["deflate", "bzip2", "lzma"])
def test_compressed_data_that_are_damaged(method, tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, 5000, np.uint8)
    content = bytearray(npz([("x.npy", npy(noise))], method))
    content[2000:2100] = bytes(100)
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(LoaderxError, match=r"x\.npz, array 'x' is damaged or cut off"):
        Dataset.open(tmp_path / "x.npz").batch(100)[0]


# Files that are none ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "opened",
    [
        Dataset.open,
        lambda path: Dataset(path, "x", "y"),
        lx.sources.open_idx,
        lambda path: Tokens(path, 4),
    ],
    ids=["open", "Dataset", "open_idx", "Tokens"],
)
def test_what_is_no_regular_file(opened, tmp_path):
    os.mkfifo(tmp_path / "x.npy")
    with pytest.raises(FileError, match=r"x\.npy is a named pipe, and a regular file is needed"):
        opened(tmp_path / "x.npy")
    with pytest.raises(FileError, match="/dev/zero is a device"):
        opened("/dev/zero")


def test_a_folder_with_what_is_no_file(tmp_path):
    np.save(tmp_path / "x.npy", X)
    os.mkfifo(tmp_path / "y.npy")
    (tmp_path / "z.npy").mkdir()
    with pytest.raises(FileError, match=r"y\.npy is a named pipe"):
        Dataset.open(tmp_path)
    with pytest.raises(FileError, match=r"z\.npy is a folder"):
        Dataset.open(tmp_path, columns=["x", "z"])
    assert len(Dataset.open(tmp_path, columns=["x"])) == 6


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    def deny(*args, **options):
        raise PermissionError(13, "Permission denied")

    np.save(tmp_path / "x.npy", X)
    monkeypatch.setattr(os, "open", deny)
    with pytest.raises(FileError, match=r"x\.npy cannot be opened: .*Permission denied"):
        Dataset.open(tmp_path / "x.npy")


# IDX ----------------------------------------------------------------------------------------------


def idx(*shape, kind=8):
    return bytes([0, 0, kind, len(shape)]) + np.array(shape, ">u4").tobytes()


def test_a_packed_file_that_promises_more_than_it_can_hold(tmp_path):
    (tmp_path / "x.gz").write_bytes(gzip.compress(idx(50_000, 1000, 1000) + bytes(100)))
    with pytest.raises(FileError, match=r"x\.gz is damaged: its header says 50000000000 bytes, an"):
        lx.sources.open_idx(tmp_path / "x.gz")


def test_a_packed_file_with_more_than_it_says(tmp_path):
    (tmp_path / "x.gz").write_bytes(gzip.compress(idx(10) + bytes(10**8), 1))
    with pytest.raises(FileError, match=r"x\.gz has more than its header says, 10 bytes"):
        lx.sources.open_idx(tmp_path / "x.gz")


def test_a_packed_file_that_is_large(tmp_path):
    """It ends early, so that nothing of the size is made here."""
    (tmp_path / "x.gz").write_bytes(gzip.compress(idx(3000, 1000, 1000) + bytes(4 * 10**6), 9))
    pad = np.random.default_rng(0).bytes(3 * 10**6)  # a second, incompressible gzip member
    with (tmp_path / "x.gz").open("ab") as file:
        file.write(gzip.compress(pad, 1))
    with (
        pytest.warns(LoaderxWarning, match=r"x\.gz is unpacked into memory: 3\.0 GB\. Unpack") as w,
        pytest.raises(
            FileError, match="is cut off: 3000000000 bytes are expected, there are 7000000"
        ),
    ):
        lx.sources.open_idx(tmp_path / "x.gz")
    assert w[0].filename == __file__


def test_idx_files_of_too_many_axes(tmp_path):
    (tmp_path / "x").write_bytes(idx(*[1] * 100) + b"1")
    with pytest.raises(FileError, match="x is damaged: its header has the shape"):
        lx.sources.open_idx(tmp_path / "x")
    (tmp_path / "x").write_bytes(idx(1, 0, 2**31, 2**30))
    with pytest.raises(FileError, match="x is damaged: its header has the shape"):
        lx.sources.open_idx(tmp_path / "x")


def test_the_names_of_the_package():
    assert set(lx.sources.__all__) <= set(dir(lx.sources))
    assert lx.sources.__all__ == sorted(lx.sources.__all__)
    assert "open_idx" in dir(lx.sources)


def test_records_without_numbers(method, tmp_path):
    (tmp_path / "x.npz").write_bytes(npz([("x.npy", npy(np.zeros((6, 0), "i2")))], method))
    dataset = Dataset.open(tmp_path / "x.npz")
    assert dataset.batch(4)[0]["x"].shape == (4, 0)
    (tmp_path / "x.gz").write_bytes(gzip.compress(idx(6, 0, kind=13)))
    assert lx.sources.open_idx(tmp_path / "x.gz").shape == (6, 0)
