"""Stages and their values as text that is the same on every machine.

A stage reads ``kind(name=value, ...)``.  Only options that differ from their defaults are named, so
that a new option changes no existing text.  That makes the defaults part of the format: changing
one requires a new version of states.

Values that mean the same have one text: names of a dict are sorted, and ``0``, ``0.0`` and
``np.float32(0)`` are ``0``.  NumPy's ``repr`` is never used, since it differs between versions.
"""

from __future__ import annotations

import codecs
import math
import operator
import zlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any, SupportsFloat

import numpy as np

from loaderx.frozen import Frozen
from loaderx.tree import Array, DType, is_array_like

LONGEST = 80  # characters of a value; longer ones are written as a digest
_INPUTS = ("input", "components")  # fields that hold other nodes


class Encoded(str):
    """Text that is encoded already."""

    __slots__ = ()


def digest(data: bytes) -> Encoded:
    """Eight hex digits that stand for these bytes."""
    return Encoded(f"#{zlib.crc32(data):08x}")


def stage_text(
    kind: str,
    values: Mapping[str, object],
    *records: Frozen,
    without: Collection[str] = (),
    renamed: Mapping[str, str] | None = None,
) -> str:
    """The text of a stage: ``values``, then the fields of ``records`` (a node, its options).

    Of these, fields without a default come first, in their order; then, sorted by name, those
    whose value is not the default that their class declares.
    """
    named, options = dict(values), {}
    for record in records:
        for field in record._fields:
            if field in without or field in _INPUTS:
                continue
            name, value = (renamed or {}).get(field, field), getattr(record, field)
            if not hasattr(type(record), field):
                named[name] = value
            elif encode(value) != encode(getattr(type(record), field)):
                options[name] = value
    inside = [*named.items(), *sorted(options.items())]
    return f"{kind}({', '.join(f'{name}={_shortened(value)}' for name, value in inside)})"


def _shortened(value: object) -> str:
    text = encode(value)
    return text if len(text) <= LONGEST else digest(text.encode())


class Stage(Frozen):
    """A stage, parsed from its text; its values are still text."""

    kind: str
    values: dict[str, str]

    def text(self) -> str:
        return f"{self.kind}({', '.join(f'{name}={value}' for name, value in self.values.items())})"


def parse_stage(text: str) -> Stage | None:
    """The stage with this text; None if it is not the text of a stage."""
    kind, opened, rest = text.partition("(")
    if not opened or not rest.endswith(")"):
        return None
    values: dict[str, str] = {}
    for item in _split(rest[:-1]):
        name, equals, value = item.partition("=")
        if not equals or not name.isidentifier() or name in values:
            return None
        values[name] = value
    return Stage(kind, values)


def _split(text: str) -> Iterable[str]:
    """Cuts at commas that are neither within brackets nor within quotes."""
    depth, quoted, escaped, start = 0, False, False, 0
    for position, character in enumerate(text):
        if quoted:
            quoted = escaped or character != "'"
            escaped = character == "\\" and not escaped
        elif character == "'":
            quoted = True
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth == 0:
            yield text[start:position]
            start = position + 2  # and the blank after it
    if text:
        yield text[start:]


def encode(value: Any) -> str:
    """The text of a value."""
    if isinstance(value, Encoded):
        return value
    if value is None or isinstance(value, (bool, np.bool_)):
        return str(None if value is None else bool(value))
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, (bytes, bytearray)):
        return f"b{_quoted(value.decode('latin-1'))}"
    if isinstance(value, (int, float, complex)):
        return _number(value)
    if isinstance(value, Mapping):
        items = sorted((encode(key), encode(inner)) for key, inner in value.items())
        return f"{{{', '.join(f'{key}: {inner}' for key, inner in items)}}}"
    if isinstance(value, (list, tuple, range)):
        return f"[{', '.join(map(encode, value))}]"
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(encode, value)))}}}"
    if isinstance(value, np.dtype):
        return _quoted(dtype_text(value))
    if is_array_like(value):  # NumPy's own scalars, too
        return _array(np.asarray(value))
    try:
        return _number(operator.index(value) if hasattr(value, "__index__") else float(value))
    except (TypeError, ValueError, OverflowError):
        # Of any other object only the type is written: its `repr` may contain an address.
        return f"<{type(value).__module__}.{type(value).__qualname__}>"


def _quoted(text: str) -> str:
    """Quoted as Python does, but always in single quotes and in ASCII."""
    # Not `text.encode("unicode_escape")`, which would import a module in the first batch.
    inner = codecs.unicode_escape_encode(text)[0].decode("ascii").replace("'", "\\'")
    return f"'{inner}'"


def _number(value: complex | SupportsFloat) -> str:
    if isinstance(value, complex):
        if value.imag:
            return f"complex({_number(value.real)}, {_number(value.imag)})"
        value = value.real
    if not isinstance(value, int):
        value = float(value)  # a subclass may have its own `repr`
        is_minus_zero = value == 0 and math.copysign(1, value) < 0
        if not value.is_integer() or is_minus_zero:
            return float.__repr__(value)  # the shortest text that reads as the same number
        value = int(value)
    # Python refuses to write very long numbers in decimal.
    return format(value, "d") if value.bit_length() <= 256 else format(value, "#x")


def _array(array: Array) -> str:
    if array.dtype.hasobject:  # its bytes are addresses
        return encode(array.item() if array.ndim == 0 else array.tolist())
    if array.ndim == 0 and array.dtype.kind in "biufcSU":
        found = array.item()
        return _number(complex(found)) if isinstance(found, np.generic) else encode(found)
    dtype = array.dtype.newbyteorder("<")
    return f"{array_text(array.shape, dtype)}{digest(array.astype(dtype, copy=False).tobytes())}"


def array_text(shape: Iterable[int | None], dtype: DType) -> str:
    """The type of an array: ``<f4[28,28]``."""
    sizes = ",".join("?" if size is None else str(size) for size in shape)
    return f"{dtype_text(dtype)}[{sizes}]"


def dtype_text(dtype: DType) -> str:
    """One name for each dtype, also where NumPy has several."""
    if dtype.fields is not None:
        parts = {name: [dtype_text(part[0]), part[1]] for name, part in dtype.fields.items()}
        return f"V{dtype.itemsize}{encode(parts)}"
    if dtype.subdtype is not None:
        return array_text(dtype.subdtype[1], dtype.subdtype[0])
    # Those of other packages (bfloat16, ...) are told apart by their name alone.
    return f"{dtype.str}:{dtype.name}" if dtype.isbuiltin == 2 else dtype.str
