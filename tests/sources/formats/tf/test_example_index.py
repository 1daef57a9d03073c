"""The walk through many Examples at once finds what the parser of one finds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderx.sources.base import BadRecordError
from loaderx.sources.formats.tf.example import find_leaves
from loaderx.sources.formats.tf.example_index import find_positions
from tf_files import example, feature, run

VALUES = st.one_of(
    st.none(),
    st.lists(st.binary(max_size=200), min_size=1, max_size=3),
    st.lists(st.floats(width=32, allow_nan=False), max_size=5),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5),
)
FEATURES = st.dictionaries(st.sampled_from(["a", "b", "label", "image/encoded", "é"]), VALUES)
EXAMPLES = st.builds(example, FEATURES, st.booleans())


def found_one_by_one(data: bytes, starts, stops):
    found = []
    for start, stop in zip(starts, stops):
        try:
            found.append(find_leaves(memoryview(data), start, stop))
        except BadRecordError:
            found.append(None)
    return found


def check(payloads: list[bytes]) -> None:
    data = b"".join(payloads)
    stops = np.cumsum([len(one) for one in payloads])
    starts = stops - [len(one) for one in payloads]
    found = find_positions(np.frombuffer(data, np.uint8), starts, stops)
    for number, leaves in enumerate(found_one_by_one(data, starts.tolist(), stops.tolist())):
        assert (leaves is None) == (number in found.damaged)
        for key, one in found.features.items():
            if leaves is None:
                assert one.sizes[number] == -3
            elif leaves.get(key) is None:
                assert one.sizes[number] == -1
            else:
                kind, at, size, count = leaves[key]
                has = one.kinds[number], one.sizes[number], one.counts[number]
                assert has == (kind, size, count)
                assert one.at[number] == at or size == 0
        assert set(leaves or ()) <= set(found.features)


@given(st.lists(EXAMPLES, min_size=1, max_size=6))
def test_examples_of_all_kinds(payloads):
    check(payloads)


@given(st.lists(EXAMPLES, min_size=1, max_size=3), st.data())
def test_damaged_examples(payloads, data):
    for _ in range(data.draw(st.integers(1, 4))):
        number = data.draw(st.integers(0, len(payloads) - 1))
        raw = bytearray(payloads[number])
        if raw:
            at = data.draw(st.integers(0, len(raw) - 1))
            raw[at] = data.draw(st.integers(0, 255))
            if data.draw(st.booleans()):
                del raw[at:]
        payloads[number] = bytes(raw)
    check(payloads)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        run(1, b""),
        run(1, run(1, run(2, feature([1])) + run(1, b"a"))),  # the value before the key
        example({"a": [1]}) + example({"a": [2, 3]}),  # two messages are one
        run(1, run(1, run(1, b"a") + run(2, feature([1.0]))) * 2),  # a key that comes twice
        run(1, run(1, run(1, b"a") + run(2, run(3, run(1, b"\x05") + run(1, b"\x06"))))),
        run(1, run(1, run(2, feature([1])))),  # no key
        run(1, run(1, run(1, b"a"))),  # no value
        run(1, b"\x0a\x80\x80\x80\x80\x80\x80\x01"),  # a length that is too long
    ],
)
def test_unusual_examples(payload):
    check([example({"a": [7]}), payload, example({"a": [9]})])


def test_a_sequence_example_is_named():
    payload = run(1, b"") + run(2, run(1, run(1, b"frames")))
    with pytest.raises(BadRecordError, match=r"tf\.SequenceExample"):
        find_leaves(memoryview(payload), 0, len(payload))
