"""JSON text as Python values: by msgspec where it is installed, else by `json`.

Both give the same.  What msgspec refuses and `json` takes (NaN, 1e400, half of a surrogate pair) is
read by `json`, line by line.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from loaderx.errors import FileError
from loaderx.sources.formats.lines.files import LinesOfFile
from loaderx.sources.formats.lines.index import Offsets, text_start
from loaderx.tree import Array

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"

_scan: Callable[[str, int], tuple[JsonValue, int]]
_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # not in typeshed
_WHITESPACE = " \t\r\n"
_BETWEEN = b", \t\r\n"  # what lies between the elements of an array
_OPEN, _CLOSE = ord("{"), ord("}")


class FastParser(NamedTuple):
    """The functions of msgspec that are used here."""

    decode: Callable[[memoryview | bytes | str], JsonValue]
    decode_lines: Callable[[memoryview], list[JsonValue]]


@functools.cache
def fast_parser() -> FastParser | None:
    """msgspec's parser; None if it is not installed."""
    try:
        import msgspec
    except ImportError:
        return None
    decoder = msgspec.json.Decoder()
    return FastParser(decoder.decode, decoder.decode_lines)


def parse(piece: memoryview | bytes) -> JsonValue:
    """One value, which may have whitespace around it; a ValueError if there is anything else."""
    text = str(piece, "utf-8")
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        value, end = None, -1
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if end == -1 or text[end:].strip(_WHITESPACE):
        try:
            return json.loads(text)  # type: ignore[no-any-return]  # leading whitespace, or an error
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error
    return value


def parse_lines(part: LinesOfFile) -> Sequence[JsonValue]:
    """The values of lines, one each; a ValueError if one of them is not JSON."""
    fast = fast_parser()
    if fast is None:
        return _parse_all(part)
    try:
        if are_objects_of_one_line(part):
            found = fast.decode_lines(part.data.data[part.starts[0] : part.stops[-1]])
            if len(found) == len(part.starts):
                return found
        # One load for each line, all under way at once, is faster than one after the other.
        part.data[part.starts].max()
        return [fast.decode(piece) for piece in part.pieces()]
    except (ValueError, RecursionError):
        return [_parse_either(piece, fast) for piece in part.pieces()]


def _parse_all(part: LinesOfFile) -> Sequence[JsonValue]:
    """The values of lines by `json`, without what `json.loads` does around its parser."""
    try:
        texts = [str(piece, "utf-8") for piece in part.without_ends().pieces()]
        found = [_scan(text, 0) for text in texts]
    except (StopIteration, ValueError, RecursionError):
        return [parse(piece) for piece in part.pieces()]
    if [end for _, end in found] != list(map(len, texts)):  # whitespace around it, or more
        return [parse(piece) for piece in part.pieces()]
    return [value for value, _ in found]


def are_objects_of_one_line(part: LinesOfFile) -> bool:
    """True if lines follow each other, with a ``}`` before and a ``{`` after each newline.

    Inside of a value no ``{`` follows a ``}``, so every value begins and ends within a line.  If
    there are as many values as lines, each line has one.
    """
    data, starts, stops = part.data, part.starts, part.stops
    if len(starts) < 2 or not part.is_run:
        return False
    return bool((data[starts] == _OPEN).all() and (data[stops[:-1] - 2] == _CLOSE).all())


def _parse_either(piece: memoryview | bytes, fast: FastParser) -> JsonValue:
    try:
        return fast.decode(piece)
    except (ValueError, RecursionError):
        return parse(piece)


def parse_kept(piece: object) -> JsonValue:
    """A value that was written with `json`."""
    assert isinstance(piece, bytes)
    fast = fast_parser()
    return parse(piece) if fast is None else _parse_either(piece, fast)


def parse_elements(part: LinesOfFile) -> Sequence[JsonValue]:
    """Like `parse_lines`, for pieces of an array, which have commas behind them."""
    pieces = [bytes(piece).rstrip(_BETWEEN) for piece in part.pieces()]
    fast = fast_parser()
    if fast is None:
        return [parse(piece) for piece in pieces]
    return [_parse_either(piece, fast) for piece in pieces]


# Arrays -----------------------------------------------------------------------------------------


def is_array(data: Array, path: str) -> bool:
    """True if the first character of a file that is not whitespace is ``[``."""
    start = text_start(data, path)
    return bytes(data[start : start + 4096]).lstrip(_WHITESPACE.encode())[:1] == b"["


def element_offsets(data: Array, path: str) -> Offsets:
    """Where the elements of an array begin, and where it ends; each must be an object."""
    # As Latin-1 every byte is a character, so places in the text are places in the file; what has
    # a meaning in JSON is ASCII.
    text = str(data.data, "latin-1")
    decoder = json.JSONDecoder(strict=False)
    place = _skip(text, text.index("[") + 1)
    offsets: list[int] = []
    is_end = text[place : place + 1] == "]"
    try:
        while not is_end:
            if text[place : place + 1] != "{":
                raise ValueError(f"element {len(offsets)} of the array is not an object")
            offsets.append(place)
            place = _skip(text, decoder.raw_decode(text, place)[1])
            is_end = text[place : place + 1] == "]"
            if not is_end:
                if text[place : place + 1] != ",":
                    raise ValueError(
                        f"element {len(offsets) - 1} has neither a comma nor the end behind it"
                    )
                place = _skip(text, place + 1)
        if text[place + 1 :].strip(_WHITESPACE):
            raise ValueError("something follows the array")
    except (ValueError, RecursionError) as error:
        raise FileError(
            f"{path} is neither an array of objects nor objects one a line: {error}."
        ) from error
    return np.array([*offsets, place], np.int64)


def _skip(text: str, place: int) -> int:
    while text[place : place + 1] in _WHITESPACE and place < len(text):
        place += 1
    return place
