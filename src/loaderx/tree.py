"""Records and batches as trees of arrays.

Dicts, tuples, named tuples, lists and dataclasses are structure; None is an empty branch, as in
JAX.  Everything else is a leaf.  A list of scalars is a leaf too (``[1, 2, 3]`` is a row of
numbers); other lists are structure.

`flatten` takes a tree apart into leaves and a `Structure`; equal structures are one object, so that
comparing them is an identity test.  `as_array` holds the rules by which a leaf becomes an array:
arrays keep their dtype, Python numbers get the dtype that JAX gives them (int32, float32), text is
never cut, and an image of Pillow has height, width and channels.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from loaderx.errors import StackError
from loaderx.frozen import Frozen

Tree: TypeAlias = Any
"""A record or a batch, as users have it: the structure and the leaves that the module describes."""

Leaf: TypeAlias = Any
"""A value without structure: an array, a number, a text, or any other object of the user's."""

# Spelled out, as in other modules that are imported first: `numpy.typing` is slow to import.
Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[Any]]
DType: TypeAlias = np.dtype[Any]

_SCALARS = (bool, int, float, complex, str, bytes, np.generic)


class ArraySpec(Frozen):
    """Shape and dtype of a leaf.  None in a shape: it varies between elements."""

    shape: tuple[int | None, ...]
    dtype: DType

    def fits(self, dtype: DType, shape: tuple[int, ...]) -> bool:
        """Whether an array of this dtype and shape has this spec."""
        if dtype != self.dtype or len(shape) != len(self.shape):
            return False
        return all(want in (None, have) for have, want in zip(shape, self.shape, strict=True))

    def __repr__(self) -> str:
        inner = ",".join("?" if size is None else str(size) for size in self.shape)
        return f"{self.dtype}[{inner}]"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ArraySpec):
            return NotImplemented
        return (self.shape, self.dtype) == (other.shape, other.dtype)

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))


class Structure(Frozen):
    """The shape of a tree without its leaves.  Interned: compare with ``is``."""

    kind: str  # leaf, none, dict, tuple, list, namedtuple, dataclass
    type: type | None
    keys: tuple[Hashable, ...]
    children: tuple[Structure, ...]
    is_flat_dict: bool  # a dict whose values are leaves: the usual record, built without recursion

    def __reduce__(self) -> tuple[object, ...]:
        return _intern, (self.kind, self.type, self.keys, self.children)

    def build(self, leaves: Iterable[object]) -> Tree:
        """The tree with these leaves."""
        if self.is_flat_dict:
            return dict(zip(self.keys, leaves))  # noqa: B905 (a hot path)
        return self._build(iter(leaves))

    def _build(self, leaves: Iterator[object]) -> Tree:
        if self is LEAF:
            return next(leaves)
        if self.kind == "none":
            return None
        values = [child._build(leaves) for child in self.children]
        if self.kind == "dict":
            return dict(zip(self.keys, values, strict=True))
        if self.kind == "dataclass":
            # Not through `__init__`: what it checks or derives was done when the tree was made.
            made: Tree = object.__new__(self.type)  # type: ignore[arg-type]
            for key, value in zip(self.keys, values, strict=True):
                object.__setattr__(made, str(key), value)
            return made
        if self.kind == "namedtuple":
            return tuple.__new__(self.type, values)  # type: ignore[arg-type]
        return tuple(values) if self.kind == "tuple" else values

    def paths(self, prefix: str = "") -> list[str]:
        """A readable path for each leaf, such as ``inputs.tokens``."""
        if self is LEAF:
            return [prefix]
        found: list[str] = []
        for key, child in zip(self.keys, self.children, strict=True):
            found += child.paths(f"{prefix}.{key}" if prefix else str(key))
        return found


# Children stand in a key by their ids: they are interned, and the value keeps them alive.
_interned: weakref.WeakValueDictionary[Hashable, Structure] = weakref.WeakValueDictionary()
_recent: deque[Structure] = deque(maxlen=64)  # kept: else each batch would make its own again


def _intern(
    kind: str, type_: type | None, keys: Sequence[Hashable], children: Sequence[Structure]
) -> Structure:
    identity = (kind, type_, tuple(keys), tuple(map(id, children)))
    found = _interned.get(identity)
    if found is None:
        flat = kind == "dict" and all(child is LEAF for child in children)
        made = Structure(kind, type_, tuple(keys), tuple(children), flat)
        found = _interned.setdefault(identity, made)
        _recent.append(found)
    return found


LEAF = _intern("leaf", None, (), ())
_NONE = _intern("none", None, (), ())


def flatten(tree: object) -> tuple[list[Leaf], Structure]:
    """The leaves of a tree, and its structure."""
    leaves: list[Leaf] = []
    return leaves, _walk(tree, leaves)


def _walk(tree: Tree, leaves: list[Leaf]) -> Structure:
    if isinstance(tree, (np.ndarray, ArraySpec)):
        leaves.append(tree)
        return LEAF
    if isinstance(tree, Mapping):
        children = [_walk(value, leaves) for value in tree.values()]
        return _intern("dict", None, tuple(tree), children)
    if tree is None:
        return _NONE
    if isinstance(tree, tuple):
        children = [_walk(value, leaves) for value in tree]
        if hasattr(tree, "_fields"):
            return _intern("namedtuple", type(tree), tree._fields, children)
        return _intern("tuple", None, range(len(tree)), children)
    if isinstance(tree, list) and not all(isinstance(value, _SCALARS) for value in tree):
        children = [_walk(value, leaves) for value in tree]
        return _intern("list", None, range(len(tree)), children)
    if hasattr(type(tree), "__dataclass_fields__") and not is_array_like(tree):
        names = field_names(tree)
        children = [_walk(getattr(tree, name), leaves) for name in names]
        return _intern("dataclass", type(tree), names, children)
    leaves.append(tree)
    return LEAF


def field_names(record: Tree) -> list[str]:
    """The fields of a dataclass that are structure: what it is made of, not what it derives."""
    import dataclasses  # late: a program without dataclasses need not load it

    return [field.name for field in dataclasses.fields(record) if field.init]


class HasArray(Protocol):
    """What NumPy makes an array of: columns of tables, arrays of other libraries."""

    def __array__(self, dtype: Any = None, /) -> Array: ...


def is_array_like(value: object) -> bool:
    """Whether it is an array of some library, or can be made one."""
    return hasattr(value, "__array__") or hasattr(value, "__array_interface__")


def same_structure(tree: object, structure: Structure) -> list[Leaf] | None:
    """The leaves in the order of ``structure``; None if the tree has another structure.

    Two dicts with the same keys in another order have the same structure.
    """
    leaves, other = flatten(tree)
    if other is structure:
        return leaves
    return _reordered(iter(leaves), other, structure)


def _reordered(leaves: Iterator[Leaf], have: Structure, want: Structure) -> list[Leaf] | None:
    """The leaves of a tree of structure ``have`` in the order of ``want``, None if they differ."""
    if have is LEAF and want is LEAF:
        return [next(leaves)]
    if (have.kind, have.type) != (want.kind, want.type) or set(have.keys) != set(want.keys):
        return None
    wanted = dict(zip(want.keys, want.children, strict=True))
    parts: dict[Hashable, list[Leaf]] = {}
    for key, child in zip(have.keys, have.children, strict=True):
        part = _reordered(leaves, child, wanted[key])
        if part is None:
            return None
        parts[key] = part
    return [leaf for key in want.keys for leaf in parts[key]]


def map_leaves(f: Callable[[Leaf], object], tree: object) -> Tree:
    """The tree with ``f`` applied to every leaf."""
    leaves, structure = flatten(tree)
    return structure.build(f(leaf) for leaf in leaves)


def describe(structure: Structure) -> str:
    """A structure as a person would write it: ``{'image': *, 'label': *}``."""
    if structure is LEAF:
        return "*"
    if structure.kind == "none":
        return "None"
    inner = [describe(child) for child in structure.children]
    if structure.kind == "dict":
        pairs = zip(structure.keys, inner, strict=True)
        return "{" + ", ".join(f"{key!r}: {value}" for key, value in pairs) + "}"
    if structure.kind == "list":
        return f"[{', '.join(inner)}]"
    if structure.type is not None:
        pairs = zip(structure.keys, inner, strict=True)
        return f"{structure.type.__name__}({', '.join(f'{k}={v}' for k, v in pairs)})"
    return f"({', '.join(inner)}{',' if len(inner) == 1 else ''})"


def as_array(value: object) -> Array:
    """One record's leaf as an array, by the rules of the module's docstring."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, (str, bytes)):
        return _object_scalar(value)
    if isinstance(value, np.generic):
        return np.asarray(value)
    if isinstance(value, (bool, int, float, complex)):
        return narrowed(np.asarray(value), value)
    if isinstance(value, list):
        if any(isinstance(item, (str, bytes)) for item in value):
            out = np.empty(len(value), object)
            out[:] = value
            return out
        array = np.asarray(value)
        plain = all(type(item) in (bool, int, float, complex) for item in value)
        return narrowed(array, value) if plain else array
    if is_array_like(value):
        array = np.asarray(value)
        # Of Pillow's images the gray ones have two axes; pixels have a channel everywhere here.
        return array[..., None] if array.ndim == 2 and hasattr(value, "getbands") else array
    return _object_scalar(value)


def _object_scalar(value: object) -> Array:
    out = np.empty((), object)
    out[()] = value
    return out


_NARROW = {"i": np.int32, "u": np.int32, "f": np.float32, "c": np.complex64, "b": np.bool_}


def narrowed(array: Array, value: Leaf) -> Array:
    """Python numbers as JAX would hold them; ``value`` is what they were."""
    kind = array.dtype.kind
    if kind == "O" or (kind in "iu" and array.size and not _fits_int32(array)):
        raise StackError(
            f"the Python integer {_widest(value)} does not fit into int32, which is what Python "
            "integers become. Use np.int64(...) in the record to keep 64 bits."
        )
    with np.errstate(over="ignore"):
        narrow: Array = array.astype(_NARROW[kind])
    if kind in "fc" and not np.array_equal(np.isfinite(narrow), np.isfinite(array)):
        raise StackError(
            f"the Python number {_widest(value)} does not fit into float32, which is what Python "
            "floats become. Use np.float64(...) in the record to keep 64 bits."
        )
    return narrow


def _fits_int32(array: Array) -> bool:
    return bool(array.max() <= 2**31 - 1 and array.min() >= -(2**31))


def _widest(value: Leaf) -> Leaf:
    return max(value, key=abs) if isinstance(value, list) else value


def narrow_scalars(values: list[complex]) -> Array:
    """A column of Python numbers, one per record."""
    return narrowed(np.asarray(values), values)


def spec_of(tree: object) -> Tree:
    """The tree with an `ArraySpec` for every leaf."""

    def one(leaf: object) -> ArraySpec:
        array = as_array(leaf)
        return ArraySpec(array.shape, array.dtype)

    return map_leaves(one, tree)


def spec_of_first(elements: Iterable[object]) -> Tree:
    """The spec of the first element.

    An empty list has no dtype of its own: it gets that of the next one with items.
    """
    several = iter(elements)
    leaves, structure = flatten(next(several))
    specs = [spec_of(leaf) for leaf in leaves]
    empty = {place for place, leaf in enumerate(leaves) if isinstance(leaf, list) and not leaf}
    while empty and (element := next(several, None)) is not None:
        found = same_structure(element, structure) or ()
        for place in [place for place in empty if found and len(found[place])]:
            specs[place] = ArraySpec((None,), as_array(found[place]).dtype)
            empty.remove(place)
    return structure.build(specs)
