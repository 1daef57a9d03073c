"""Where the buffers of Arrow record batches lie.

A record batch keeps each column in a few buffers.  Their addresses (and sizes, where offsets lead
into them) are all that is needed to read a record.  They are a column of numbers for each batch,
the *slots*; what a slot means follows from the column's Arrow type:

=============  ==========================================================
bits           valid, bits
numbers        valid, address
bytes          valid, address of the offsets, address of the data, its size
list           valid, address of the offsets, number of items; items
fixed_list     valid, number of the first item; items
struct         valid; fields
=============  ==========================================================

``valid`` and ``bits`` are addresses counted in bits; ``valid`` is -1 where there are no nulls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, TypeAlias

from loaderx.errors import FileError
from loaderx.frozen import Frozen
from loaderx.sources.formats.arrow.types import number_type

if TYPE_CHECKING:
    import pyarrow as pa

NodeKind: TypeAlias = Literal["bits", "numbers", "bytes", "list", "fixed_list", "struct"]

_SLOTS = {"bits": 2, "numbers": 2, "bytes": 4, "list": 3, "fixed_list": 2, "struct": 1}
_NARROW_TIMES = ("date32", "time32")


class Node(Frozen):
    """The part of an Arrow type that says how its buffers are laid out."""

    kind: NodeKind
    width: int = 0  # bytes of a number; of an offset (4 or 8), for bytes and lists
    size: int = 0  # items of a fixed_list
    names: tuple[str, ...] = ()  # of the fields of a struct
    children: tuple[Node, ...] = ()

    @property
    def own_slots(self) -> int:
        return _SLOTS[self.kind]

    @property
    def slots(self) -> int:
        return self.own_slots + sum(child.slots for child in self.children)


def node_of(kind: pa.DataType) -> Node | None:
    """The layout of an Arrow type; None if its values cannot be read in place."""
    while hasattr(kind, "storage_type"):
        kind = kind.storage_type
    text = str(kind)
    if text == "bool":
        return Node("bits")
    dtype = number_type(kind)
    if dtype is not None:
        return Node("numbers", 4 if text.startswith(_NARROW_TIMES) else dtype.itemsize)
    if text.startswith("fixed_size_binary["):
        return Node("numbers", kind.byte_width)
    if text in ("string", "binary"):
        return Node("bytes", 4)
    if text in ("large_string", "large_binary"):
        return Node("bytes", 8)
    if text.startswith("struct<"):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return _with_children(
            Node("struct", names=tuple(field.name for field in fields)),
            [field.type for field in fields],
        )
    if text.startswith(("list<", "large_list<")):
        return _with_children(Node("list", 8 if text[:2] == "la" else 4), [kind.value_type])
    if text.startswith("fixed_size_list<"):
        return _with_children(Node("fixed_list", size=kind.list_size), [kind.value_type])
    return None  # dictionaries, views, runs, decimals, ...


def _with_children(node: Node, kinds: list[pa.DataType]) -> Node | None:
    children = [node_of(kind) for kind in kinds]
    found = [child for child in children if child is not None]
    return node.replace(children=tuple(found)) if len(found) == len(children) else None


class NotMappedError(Exception):
    """Raised if buffers do not lie in the file: they were compressed, or had to be copied."""


class Addresses:
    """Finds the slots of arrays whose buffers lie in one stretch of memory."""

    def __init__(self, base: int, size: int) -> None:
        """Addresses are counted from ``base``; buffers end ``size`` bytes behind it at most."""
        self._base, self._size = base, size
        self.highest = 0  # where the last of the buffers ends

    def slots(self, array: pa.Array, node: Node) -> Iterator[int]:
        """The slots of an array, in the order of the module's docstring."""
        while hasattr(array, "storage"):
            array = array.storage
        buffers, start, count = array.buffers(), array.offset, len(array)
        yield self._bits(buffers[0], start) if array.null_count else -1
        if node.kind == "bits":
            yield self._bits(buffers[1], start)
        elif node.kind == "numbers":
            yield self._at(buffers[1], start * node.width, count * node.width)
        elif node.kind == "bytes":
            yield self._at(buffers[1], start * node.width, (count + 1) * node.width if count else 0)
            yield self._at(buffers[2], 0, 0)
            yield 0 if buffers[2] is None else buffers[2].size
        elif node.kind == "list":
            yield self._at(buffers[1], start * node.width, (count + 1) * node.width if count else 0)
            items = array.values
            yield len(items)
            yield from self.slots(items, node.children[0])
        elif node.kind == "fixed_list":
            yield start * node.size
            items = array.values
            if len(items) < (start + count) * node.size:
                raise FileError(f"a column has {len(items)} items for {count} lists.")
            yield from self.slots(items, node.children[0])
        else:
            for number, child in enumerate(node.children):
                yield from self.slots(array.field(number), child)

    def _at(self, buffer: pa.Buffer | None, skipped: int, needed: int) -> int:
        if buffer is None or not buffer.size:
            if needed:
                raise FileError(f"a buffer of {needed} bytes is missing.")
            return 0
        address = int(buffer.address) - self._base
        if address < 0 or address + buffer.size > self._size:
            raise NotMappedError
        self.highest = max(self.highest, address + buffer.size)
        if skipped + needed > buffer.size:
            raise FileError(f"a buffer has {buffer.size} bytes, and {skipped + needed} are needed.")
        return address + skipped

    def _bits(self, buffer: pa.Buffer | None, start: int) -> int:
        return self._at(buffer, 0, 0) * 8 + start
