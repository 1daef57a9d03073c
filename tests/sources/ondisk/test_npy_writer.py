"""`NpyWriter`: files that grow piece by piece."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from loaderx.sources.files import npy as npy_writer
from loaderx.sources.files.npy import NpyWriter

pieces = st.lists(st.tuples(st.integers(0, 700), st.booleans()), max_size=12)


@settings(deadline=None)
@given(pieces)
def test_pieces_of_all_sizes(tmp_path_factory, pieces):
    """With pauses between them, and blocks that are much smaller than pieces."""
    path = tmp_path_factory.mktemp("npy") / "x.npy"
    block, npy_writer.BLOCK = npy_writer.BLOCK, 256
    try:
        made = np.arange(sum(count for count, _ in pieces), dtype=np.uint8)
        start = 0
        with NpyWriter(str(path), np.dtype(np.uint8)) as writer:
            for count, pauses in pieces:
                piece = made[start : start + count]
                writer.append(piece)
                start += count
                if pauses:
                    writer.pause()
    finally:
        npy_writer.BLOCK = block
    np.testing.assert_array_equal(np.load(path), made)


def test_large_pieces_are_written_in_whole_blocks(tmp_path, monkeypatch):
    written = []

    class Watched:
        def __init__(self, file):
            self._file, self.closed = file, False

        def write(self, data):
            written.append(len(data))
            return self._file.write(data)

        def __getattr__(self, name):
            return getattr(self._file, name)

    def watched(*args):
        return Watched(open(*args))

    monkeypatch.setattr(npy_writer, "open", watched, raising=False)
    size = 5 * npy_writer.BLOCK // 2
    with NpyWriter(str(tmp_path / "x.npy"), np.dtype(np.uint8)) as writer:
        for _ in range(4):
            writer.append(np.ones(size, np.uint8))
    places = np.cumsum(written[:-1])[:-1]  # the header is written last
    assert [place % npy_writer.BLOCK for place in places if place > 128] == [0] * (len(places) - 1)
    assert np.load(tmp_path / "x.npy").sum() == 4 * size
