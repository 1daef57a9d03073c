"""A traceback of frames that ran in another process.

A Python traceback needs frames, so each entry gets one whose code has the file, name and position
of the original.  It is the frame of a generator that never ran, and so has no caller to keep alive.
The traceback shows the source of that file, as usual; the variables stayed in the worker.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from types import CodeType, FunctionType, GeneratorType, TracebackType
from typing import NamedTuple


class RemoteFrame(NamedTuple):
    """Where a call was: lines count from 1, columns in bytes from 0; None: not known."""

    file: str
    line: int | None
    name: str
    end_line: int | None
    column: int | None
    end_column: int | None


def frames_of(traceback: TracebackType | None) -> list[RemoteFrame]:
    """The frames of a traceback, the outermost first."""
    found: list[RemoteFrame] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        # An instruction takes two bytes.
        positions = itertools.islice(code.co_positions(), traceback.tb_lasti // 2, None)
        _, end_line, column, end_column = next(positions, (None, None, None, None))
        place = (traceback.tb_lineno, code.co_name, end_line, column, end_column)
        found.append(RemoteFrame(code.co_filename, *place))
        traceback = traceback.tb_next
    return found


def traceback_of(frames: Sequence[RemoteFrame]) -> TracebackType | None:
    """The traceback of these frames, the outermost first; None if there are none."""
    made: TracebackType | None = None
    for frame in reversed(frames):
        with contextlib.suppress(ValueError, TypeError, SyntaxError):  # an odd file name, say
            code, instruction = _code(frame)
            generator: GeneratorType[None, None, None] = FunctionType(code, {})()
            its_frame = generator.gi_frame
            assert its_frame is not None  # it has not run
            made = TracebackType(made, its_frame, 2 * instruction, frame.line or 1)
    return made


def _code(frame: RemoteFrame) -> tuple[CodeType, int]:
    """The code of a generator, and the number of an instruction where the frame was."""
    import ast  # late: only errors of worker processes need it

    line = frame.line or 1
    end_line = max(line, frame.end_line or line)
    column, end_column = frame.column, frame.end_column
    if column is None or end_column is None:
        column = end_column = -1  # shows none
    tree = ast.parse("def f():\n yield\n raise")
    for node in ast.walk(tree):
        if isinstance(node, (ast.stmt, ast.expr)):
            node.lineno, node.end_lineno = line, end_line
            node.col_offset, node.end_col_offset = column, end_column
    module = compile(tree, frame.file, "exec")
    code: CodeType = next(one for one in module.co_consts if isinstance(one, CodeType))
    code = code.replace(co_name=frame.name, co_qualname=frame.name)
    ends = [place[:2] for place in code.co_positions()]
    return code, len(ends) - 1 - ends[::-1].index((line, end_line))
