"""Structures of records, and records of them, for what is saved and read again."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from loaderx.tree import as_array, flatten, same_structure

_PART = re.compile(rb"(part-\d+)-[0-9a-f]{16}")
DTYPES = [
    np.dtype(one) for one in ("?", "u1", "<i4", "<i8", ">i4", "<f4", "<f8", "<c8", "<M8[s]", "<U3")
]
NAMES = ["a", "b", "a.b", "ä x", "%", "offsets", "items", "..", ""]

texts = st.text(st.characters(codec="utf-8"), max_size=5)
dtypes = st.sampled_from(DTYPES)
small_shapes = st.lists(st.integers(0, 3), max_size=2).map(tuple)


@st.composite
def arrays_of_one_shape(draw):
    dtype, shape = draw(dtypes), draw(small_shapes)
    return hnp.arrays(dtype, shape)


@st.composite
def arrays_of_many_lengths(draw):
    dtype, rest = draw(dtypes), draw(st.sampled_from([(), (2,), (1, 3)]))
    return st.integers(0, 4).flatmap(lambda n: hnp.arrays(dtype, (n, *rest)))


numbers = st.sampled_from([st.integers(-(2**31), 2**31 - 1), st.booleans(), st.floats(width=32)])
simple = st.one_of(
    arrays_of_one_shape(),
    arrays_of_many_lengths(),
    numbers,
    st.just(texts),
    st.just(st.binary(max_size=5)),
    st.just(st.lists(texts, max_size=3)),
    st.just(st.lists(st.integers(0, 9), max_size=3)),
)


@st.composite
def maybe(draw, inner):
    """Leaves and branches, some of which may be None."""
    values = draw(inner)
    return draw(st.sampled_from([values, values, st.one_of(st.none(), values)]))


@st.composite
def dicts(draw, inner):
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    return st.fixed_dictionaries({name: draw(maybe(inner)) for name in names})


@st.composite
def tuples(draw, inner):
    return st.tuples(*draw(st.lists(maybe(inner), min_size=1, max_size=2)))


@st.composite
def lists(draw, inner):
    return st.lists(draw(inner), max_size=2)


structures = st.recursive(
    simple, lambda inner: st.one_of(dicts(inner), tuples(inner), lists(dicts(inner))), max_leaves=5
)
"""Each draw is a strategy for the records of one dataset."""

some_records = structures.flatmap(lambda records: st.lists(records, min_size=1, max_size=9))


def check_same(found, expected) -> None:
    """The records are equal, with the same dtypes.

    An empty list has no dtype of its own, NumPy's texts may be of a longer one, and its scalars are
    in the order of bytes of the machine.
    """
    leaves, structure = flatten(found)
    others = same_structure(expected, structure)
    assert others is not None, (found, expected)
    for one, two in zip(leaves, others, strict=True):
        have, want = as_array(one), as_array(two)
        assert have.shape == want.shape
        if not (isinstance(two, list) and not two) and want.dtype.kind != "U":
            dtype = want.dtype if want.ndim else want.dtype.newbyteorder("=")
            assert have.dtype == dtype, (found, expected)
        np.testing.assert_array_equal(have, want)


def content_there(files):
    """The files of a bucket, by their paths below a folder, as they are in a saved folder.

    There the names of parts have digests, and ``loaderx.json`` names parts.
    """
    found = {_PART.sub(rb"\1", name.encode()).decode(): data for name, data in files.items()}
    assert len(found) == len(files), "a part is there twice"
    return {**found, "loaderx.json": _PART.sub(rb"\1", found["loaderx.json"])}


def content(folder):
    """All files of a folder, and what is in them."""
    found = Path(folder).rglob("*")
    return {str(one.relative_to(folder)): one.read_bytes() for one in found if one.is_file()}
