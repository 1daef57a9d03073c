"""What commands write: tables that fit the terminal, and colours on terminals alone."""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from collections.abc import Sequence

_GAP = "  "
_LEAST_CELL = 12  # columns of a table are not made narrower than this
_PIPE_WIDTH = 100  # of tables in pipes and files, where no value is cut


def say(text: str = "") -> None:
    """Writes a line."""
    sys.stdout.write(f"{text}\n")


def terminal_width() -> int | None:
    """The columns of the terminal; None if the output is a pipe or a file."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def styled(text: str, code: str) -> str:
    """Text in a style such as ``"1"`` (bold), on terminals whose user wants colours."""
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return f"\x1b[{code}m{text}\x1b[0m" if text and sys.stdout.isatty() and not is_plain else text


def bold(text: str) -> str:
    return styled(text, "1")


def faint(text: str) -> str:
    return styled(text, "2")


def red(text: str) -> str:
    return styled(text, "31")


def say_table(head: Sequence[str], rows: Sequence[Sequence[str]], indent: str = "") -> bool:
    """Writes a table; False, and nothing, if its columns would not fit the width."""
    widths = [max(map(text_width, column)) for column in zip(head, *rows, strict=True)]
    room = terminal_width()
    most = (room or _PIPE_WIDTH) - len(indent) - len(_GAP) * (len(widths) - 1)
    if room is not None:
        while sum(widths) > most and max(widths) > _LEAST_CELL:
            widths[widths.index(max(widths))] -= 1
    if sum(widths) > most:
        return False
    for number, row in enumerate([head, *rows]):
        cells = map(_padded, row, widths)
        line = indent + _GAP.join(cells).rstrip()
        say(line if number else bold(line))
    return True


def text_width(text: str) -> int:
    """The columns that a terminal takes for a text.

    >>> text_width("猫 cat")
    6
    """
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(one) else 1 + (unicodedata.east_asian_width(one) in "WF")
        for one in text
    )


def cut(text: str, width: int | None) -> str:
    """The beginning of a text that is too wide for ``width`` columns.

    >>> cut("a long story", 8), cut("short", 8)
    ('a lon...', 'short')
    """
    if width is None or text_width(text) <= width:
        return text
    end = max(0, width - 3)
    while text_width(text[:end]) > width - 3 > 0:
        end -= 1
    return f"{text[:end]}..."[: max(width, 1)]


def _padded(text: str, width: int) -> str:
    text = cut(text, width)
    return text + " " * (width - text_width(text))
