"""Writes the pins anew: what every chain gives now is what it must give from then on.

    python tests/pinned/record.py            both files
    python tests/pinned/record.py states     states.json alone, after a change of their format

`orders.json` has the digests of the first elements, for each chain, each host, and each place where
an iterator may begin.  `states.json` has the states after three of them.  What follows a state is
the rest of the same row of `orders.json`, so a new format of states changes nothing there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).parent
if __name__ == "__main__":
    sys.path[0] = str(HERE.parent.parent)  # as in the tests

from loaderx import Dataset  # noqa: E402
from tests.pinned.chains import CHAINS  # noqa: E402
from tests.pinned.inputs import write_files  # noqa: E402
from tests.pinned.reading import (  # noqa: E402
    FAR_STEP,
    ONE_HOST,
    SAVED_AFTER,
    SECOND_OF_TWO,
    START,
    Read,
    begin,
    elements_of,
    key,
    places,
    quietly,
)

ORDERS, STATES = HERE / "orders.json", HERE / "states.json"


def orders_of(dataset: Dataset[Any]) -> dict[str, str]:
    found = {}
    for row, beginning, shard in places():
        iterator = begin(dataset, beginning, shard)
        if iterator is not None:
            found[row] = " ".join(Read(iterator, elements_of(row)).digests)
    return found


def states_of(dataset: Dataset[Any]) -> dict[str, Any]:
    found = {}
    for row, beginning, shard in places():
        if row == key(START, SECOND_OF_TWO) or (shard == ONE_HOST and beginning != FAR_STEP):
            iterator = begin(dataset, beginning, shard)
            # A second epoch may be shorter than that.
            if iterator and len(Read(iterator, SAVED_AFTER).elements) == SAVED_AFTER:
                found[row] = iterator.get_state()
    return found


def write(path: Path, pins: dict[str, dict[str, Any]]) -> None:
    """One line for each row, so that a change of the pins can be read."""
    chains = []
    for name in sorted(pins):
        rows = [f"  {json.dumps(row)}: {json.dumps(pin)}" for row, pin in pins[name].items()]
        chains.append(f" {json.dumps(name)}: {{\n" + ",\n".join(rows) + "\n }")
    path.write_text("{\n" + ",\n".join(chains) + "\n}\n")


def main(words: list[str]) -> None:
    with quietly(), TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder)
        if "states" not in words:
            write(ORDERS, {name: orders_of(make(folder)) for name, make in CHAINS.items()})
        write(STATES, {name: states_of(make(folder)) for name, make in CHAINS.items()})


if __name__ == "__main__":
    main(sys.argv[1:])
