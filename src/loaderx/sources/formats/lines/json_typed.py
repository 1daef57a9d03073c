"""Lines parsed straight into the types of a schema, by msgspec.

It takes lines that have the usual keys with values of the usual types, which is nearly all of them,
and refuses the others; these go the general way, which gives the same where both give something.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from loaderx.sources.formats.lines.files import LinesOfFile
from loaderx.sources.formats.lines.json_columns import JsonColumn, Lists, Values
from loaderx.sources.formats.lines.json_parsing import are_objects_of_one_line
from loaderx.sources.formats.lines.json_schema import JsonSchema

_MOST_KEYS = 256  # msgspec compares keys one by one


class TypedParser:
    """Parses lines into columns; made anew in every process."""

    def __init__(self, schema: JsonSchema) -> None:
        import msgspec

        types: dict[type | str | None, object] = {
            None: Any,
            "ints": msgspec.Raw,
            "floats": list[float],
        }
        fields = [
            (f"read_{number}", types.get(column.parsed_as, column.parsed_as))
            for number, column in enumerate(schema.columns)
        ]
        # Keys that are not wanted are parsed all the same: damage in them must be found.
        others = [(f"other_{number}", Any, None) for number in range(len(schema.others))]
        names = [one[0] for one in fields] + [one[0] for one in others]
        kind = msgspec.defstruct(
            "Line",
            [*fields, *others],
            rename=dict(zip(names, [*schema.names, *schema.others], strict=True)),
            forbid_unknown_fields=True,
            gc=False,
        )
        decoder = msgspec.json.Decoder(kind)
        self._schema = schema
        self._decode: Callable[[memoryview], object] = decoder.decode
        self._decode_lines: Callable[[memoryview], Sequence[object]] = decoder.decode_lines
        self._getters = [attrgetter(name) for name, *_ in fields]

    def columns(self, part: LinesOfFile) -> list[Values]:
        """The columns of some lines; a ValueError if they must go the general way."""
        lines = self._lines(part)
        return [
            self._converted(column, list(map(getter, lines)))
            for column, getter in zip(self._schema.columns, self._getters, strict=True)
        ]

    def _lines(self, part: LinesOfFile) -> Sequence[object]:
        if are_objects_of_one_line(part):
            found = self._decode_lines(part.data.data[part.starts[0] : part.stops[-1]])
            if len(found) == len(part.starts):
                return found
        # One load for each line, all under way at once, is faster than one after the other.
        part.data[part.starts].max()
        return [self._decode(piece) for piece in part.pieces()]

    def _converted(self, column: JsonColumn, values: list[object]) -> Values:
        if column.parsed_as is None:
            return self._schema.converted(column, values)
        if isinstance(column, Lists):
            if column.parsed_as == "floats":
                return column.of_floats(values)  # type: ignore[arg-type]
            return column.of_text([bytes(value) for value in values])  # type: ignore[call-overload]
        return values


def typed_parser(schema: JsonSchema) -> TypedParser | None:
    """A parser for a schema, where there can be one."""
    if schema.fill or len(schema.names) + len(schema.others) > _MOST_KEYS:
        return None
    try:
        return TypedParser(schema)
    except (ImportError, ValueError, TypeError):  # no msgspec, or keys that it cannot name
        return None
