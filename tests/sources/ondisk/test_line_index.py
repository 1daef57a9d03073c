"""Where lines begin: against a plain loop over the bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loaderx import FileError
from loaderx.sources.formats.lines.index import EMPTY, KEPT, WHITESPACE, line_number, line_offsets


def plain(text: bytes, blank: str, quote: bytes | None) -> list[int]:
    """The same, byte by byte."""
    lines, begin, is_open = [], 3 if text.startswith(b"\xef\xbb\xbf") else 0, False
    for place in range(begin, len(text)):
        byte = text[place : place + 1]
        is_open ^= byte == quote
        if byte == b"\n" and not is_open:
            lines.append((begin, text[begin : place + 1]))
            begin = place + 1
    if begin < len(text):
        lines.append((begin, text[begin:]))
    if is_open:
        raise FileError
    counts = {
        KEPT: lambda line: True,
        EMPTY: lambda line: len(line) > 2 or bool(line.strip(b"\r\n")),
        WHITESPACE: lambda line: bool(line.strip(b" \t\r\n")),
    }[blank]
    return [*(start for start, line in lines if counts(line)), len(text)]


ALPHABET = st.sampled_from([b"a", b"\n", b"\r", b" ", b"\t", b'"', b"\xe2\x80\xa8", b"\x85", b"{"])


@given(st.lists(ALPHABET, max_size=40), st.sampled_from([KEPT, EMPTY, WHITESPACE]), st.booleans())
@example([], KEPT, False)
@example([b"\n"], WHITESPACE, False)
@example([b'"', b"\n", b'"', b"\n", b"a"], EMPTY, True)
@example([b"\xef\xbb\xbf", b"a", b"\r", b"\n"], KEPT, False)
def test_any_bytes(pieces, blank, is_quoted):
    text = b"".join(pieces)
    data = np.frombuffer(text, np.uint8)
    quote = '"' if is_quoted else None
    try:
        expected = plain(text, blank, b'"' if is_quoted else None)
    except FileError:
        with pytest.raises(FileError, match=r"x\.csv has an odd number of quotes"):
            line_offsets(data, "x.csv", blank, quote)
        return
    assert line_offsets(data, "x", blank, quote).tolist() == expected


@pytest.mark.parametrize("quote", [None, '"'])
def test_lines_and_quotes_across_blocks(quote):
    """Blocks are a megabyte: quotes that are open at the end of one are open in the next."""
    rows = [b'"' + b"x" * 300_000 + b'\n\n"' + b",1\n" for _ in range(9)]
    rows[4] = b"no quotes\n"
    data = np.frombuffer(b"".join(rows), np.uint8)
    if quote:
        expected = np.cumsum([0, *map(len, rows)]).tolist()
    else:
        expected = [0, *(np.flatnonzero(data == 10) + 1).tolist()]
    assert line_offsets(data, "x", KEPT, quote).tolist() == expected
    assert line_number(data, expected[-2]) == np.count_nonzero(data[: expected[-2]] == 10) + 1


@pytest.mark.parametrize("head", [b"\xff\xfe", b"\xfe\xff"])
def test_utf_16_is_refused(head):
    data = np.frombuffer(head + b"a\0\n\0", np.uint8)
    with pytest.raises(FileError, match=r"x\.txt is UTF-16.*loaderx reads UTF-8\. Convert it"):
        line_offsets(data, "x.txt")
