"""Compressed data, piece by piece: against the libraries' own functions."""

from __future__ import annotations

import gzip
import sys
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderx import FileError
from loaderx.sources.files.compressed import (
    GZIP,
    ZLIB,
    ZSTD,
    in_threads,
    packing_of,
    pieces_of,
    told_bytes,
    unpacked,
)

if sys.version_info >= (3, 14):
    from compression import zstd

    zstd_of = zstd.compress
    zstd_unsized = zstd_of
else:
    zstandard = pytest.importorskip("zstandard")
    zstd_of = zstandard.ZstdCompressor().compress
    zstd_unsized = zstandard.ZstdCompressor(write_content_size=False).compress


def no_check(nbytes):
    pass


def in_steps(data, step):
    return [data[at : at + step] for at in range(0, len(data), step)]


@given(
    st.lists(st.binary(max_size=200), min_size=1, max_size=5),
    st.integers(1, 70),
    st.integers(0, 9),
    st.booleans(),
)
def test_frames_that_are_cut_anywhere(parts, step, zeros, is_gzip):
    """Members of gzip may have zeros behind them; the first frame always begins the file."""
    compress = gzip.compress if is_gzip else zstd_of
    packed = b"".join(compress(part) + bytes(zeros if is_gzip else 0) for part in parts)
    magic = GZIP if is_gzip else ZSTD
    assert packing_of(packed) == magic
    assert b"".join(pieces_of("x", in_steps(packed, step), magic)) == b"".join(parts)
    array = np.frombuffer(packed, np.uint8)
    assert unpacked("x", array, magic, no_check).tobytes() == b"".join(parts)


@given(st.binary(min_size=1, max_size=300), st.integers(1, 50), st.data())
def test_what_is_cut_off_is_refused(content, step, data):
    for magic, packed in ((GZIP, gzip.compress(content)), (ZSTD, zstd_of(content))):
        at = data.draw(st.integers(4, len(packed) - 1))
        with pytest.raises(FileError, match="x is damaged or cut off: what is compressed does not"):
            list(pieces_of("x", in_steps(packed[:at], step), magic))


def test_zlib_streams():
    content = b"".join(bytes([n % 7]) * n for n in range(3000))
    packed = zlib.compress(content)
    assert b"".join(pieces_of("x", in_steps(packed + b"more", 99), ZLIB)) == content
    with pytest.raises(FileError, match="x is damaged or cut off: what is compressed does not end"):
        list(pieces_of("x", in_steps(packed[:-20], 99), ZLIB))


def test_checksums_are_checked():
    packed = bytearray(gzip.compress(b"text" * 100))
    packed[-6] ^= 1
    with pytest.raises(FileError, match="x is damaged or cut off"):
        unpacked("x", np.frombuffer(packed, np.uint8), GZIP, no_check)


@pytest.mark.parametrize(("magic", "compress"), [(GZIP, gzip.compress), (ZSTD, zstd_unsized)])
def test_little_comes_at_a_time_however_much_comes_out(magic, compress):
    """A frame of a kilobyte may hold a gigabyte: who has enough stops."""
    packed, sizes = np.frombuffer(compress(bytes(1 << 28)), np.uint8), []

    def enough(nbytes):
        sizes.append(nbytes)
        if nbytes > 1 << 27:
            raise FileError("enough")

    with pytest.raises(FileError, match="enough"):
        unpacked("x", packed, magic, enough)
    assert np.diff([0, *sizes]).max() < 70e6


@pytest.mark.parametrize("size", [0, 1, 255, 256, 70_000, 300_000])
def test_what_files_say_of_their_size(size):
    content = bytes(size)
    packed = gzip.compress(content)
    assert told_bytes(packed[:32], packed[-4:], GZIP) == size
    packed = zstd_of(content)
    assert told_bytes(packed[:32], packed[-4:], ZSTD) == size
    if sys.version_info < (3, 14):
        packed = zstd_unsized(content)
        assert told_bytes(packed[:32], packed[-4:], ZSTD) == 0
    assert told_bytes(ZSTD, b"", ZSTD) == 0


def test_the_first_error_stops_the_others():
    stopped = []

    def work(number, stop):
        if number == 0:
            raise FileError("the first one")
        stop.wait()
        stopped.append(number)

    with pytest.raises(FileError, match="the first one"):
        list(in_threads(work, 2))
    assert stopped in ([], [1])
    assert list(in_threads(lambda number, stop: number, 3, workers=1)) == [0, 1, 2]
