"""Where lines begin: against a plain loop over the bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loaderx import FileError
from loaderx.sources.formats.lines.index import line_number, line_offsets


def plain(text: bytes, with_blank: bool) -> list[int]:
    """The same, byte by byte."""
    lines, begin = [], 3 if text.startswith(b"\xef\xbb\xbf") else 0
    for place in range(begin, len(text)):
        if text[place : place + 1] == b"\n":
            lines.append((begin, text[begin : place + 1]))
            begin = place + 1
    if begin < len(text):
        lines.append((begin, text[begin:]))
    return [*(start for start, line in lines if with_blank or line.strip(b" \t\r\n")), len(text)]


ALPHABET = st.sampled_from([b"a", b"\n", b"\r", b" ", b"\t", b'"', b"\xe2\x80\xa8", b"\x85", b"{"])


@given(st.lists(ALPHABET, max_size=40), st.booleans())
@example([], True)
@example([b"\n"], False)
@example([b"\xef\xbb\xbf", b"a", b"\r", b"\n"], True)
def test_any_bytes(pieces, with_blank):
    text = b"".join(pieces)
    data = np.frombuffer(text, np.uint8)
    found = line_offsets(data, "x", with_blank=with_blank)
    assert found.tolist() == plain(text, with_blank)


def test_lines_across_blocks():
    """Blocks are a megabyte."""
    rows = [b"x" * 300_000 + b"\n\n1\n" for _ in range(9)]
    data = np.frombuffer(b"".join(rows), np.uint8)
    expected = [0, *(np.flatnonzero(data == 10) + 1).tolist()]
    assert line_offsets(data, "x").tolist() == expected
    assert line_number(data, expected[-2]) == np.count_nonzero(data[: expected[-2]] == 10) + 1


@pytest.mark.parametrize("head", [b"\xff\xfe", b"\xfe\xff"])
def test_utf_16_is_refused(head):
    data = np.frombuffer(head + b"a\0\n\0", np.uint8)
    with pytest.raises(FileError, match=r"x\.txt is UTF-16.*loaderx reads UTF-8\. Convert it"):
        line_offsets(data, "x.txt")
