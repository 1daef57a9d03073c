"""Where the lines of a file begin: newlines are found by NumPy, a megabyte at a time.

Only the byte 10 is a newline: ``\\u2028``, form feeds and lone carriage returns are
characters of a line.  The index of a file is one array, the start of each line that counts and the
end of the file; a line ends where the next one that counts begins, so blank lines that are left out
lie at the end of the line before them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from loaderx.errors import FileError
from loaderx.tree import Array

Offsets = npt.NDArray[np.int64]

_BLOCK = 1 << 20  # bytes: small enough for the processor's cache
_BOM = b"\xef\xbb\xbf"
_WIDE_BOMS = {b"\xff\xfe": "UTF-16 or UTF-32", b"\xfe\xff": "UTF-16"}
_NEWLINE, _SPACE = 10, 32


def line_offsets(data: Array, path: str, *, with_blank: bool = True) -> Offsets:
    """The start of each line, then the end of the file; ``path`` is its name, for messages.

    Without ``with_blank``, lines without a visible character are left out.
    """
    first = text_start(data, path)
    ends = _newlines(data)
    starts = np.empty(len(ends) + 2, np.int64)
    starts[0], starts[1:-1], starts[-1] = first, ends, len(data)
    starts[1:-1] += 1
    if starts[-2] == len(data):  # the last line ends with a newline, or the file is empty
        starts = starts[:-1]
    if with_blank or len(starts) == 1:
        return starts
    is_blank = _are_whitespace(data, starts)
    return starts[np.append(~is_blank, True)] if is_blank.any() else starts


def text_start(data: Array, path: str) -> int:
    """Where the text of a file begins: after a byte order mark, if there is one."""
    head = data[:3].tobytes()
    if head[:2] in _WIDE_BOMS:
        raise FileError(
            f"{path} is {_WIDE_BOMS[head[:2]]}; loaderx reads UTF-8. Convert it, with "
            "`iconv -f UTF-16 -t UTF-8`, say."
        )
    return len(_BOM) if head == _BOM else 0


def line_number(data: Array, offset: int) -> int:
    """The number of the line that has this byte, from 1; only messages need it."""
    before = sum(
        np.count_nonzero(data[start : min(start + _BLOCK, offset)] == _NEWLINE)
        for start in range(0, offset, _BLOCK)
    )
    return int(before) + 1


def _newlines(data: Array) -> Offsets:
    found = []
    for start in range(0, len(data), _BLOCK):
        places = np.flatnonzero(data[start : start + _BLOCK] == _NEWLINE)
        places += start
        found.append(places)
    return np.concatenate(found) if found else np.empty(0, np.int64)


def _are_whitespace(data: Array, starts: Offsets) -> npt.NDArray[np.bool_]:
    is_blank = np.zeros(len(starts) - 1, np.bool_)
    first, last = data[starts[:-1]], data[starts[1:] - 1]
    for number in np.flatnonzero((first <= _SPACE) & (last <= _SPACE)).tolist():
        is_blank[number] = not data[starts[number] : starts[number + 1]].tobytes().strip(b" \t\r\n")
    return is_blank
