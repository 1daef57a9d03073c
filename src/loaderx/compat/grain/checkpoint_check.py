"""For tests of users' own datasets: are the elements after a restore those of the first run?"""

from __future__ import annotations

import numpy as np

from loaderx.compat.grain.iter_dataset import IterDataset
from loaderx.compat.grain.protocols import Element, State
from loaderx.compat.grain.trees import spec_text


def assert_equal_output_after_checkpoint(ds: IterDataset[Element]) -> None:
    """Restores the state before every element, and compares all that follows."""
    iterator = ds.__iter__()
    states: list[State] = []
    elements: list[Element] = []
    spec = spec_text(iterator.get_state())
    while True:
        state = iterator.get_state()
        found = spec_text(state)
        assert found == spec, f"the state before element {len(states)} is {found}, not {spec}."
        try:
            elements.append(next(iterator))
        except StopIteration:
            break
        states.append(state)
    assert elements, "the dataset has no elements."
    for number, state in enumerate(states):
        again = ds.__iter__()
        again.set_state(state)
        np.testing.assert_equal(again.get_state(), state, f"the state before element {number}")
        np.testing.assert_equal([*again], elements[number:], f"from element {number} on")
