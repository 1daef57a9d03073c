"""Records what Grain gives, for the tests that run without it.

    .venv-grain/bin/python tests/owners/grain/record.py

Writes `tests/compat/grain/digests.json` and `states.json` from the pipelines of
`tests/support/grain_pipelines.py`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

TESTS = Path(__file__).parents[2]
sys.path.insert(0, str(TESTS / "support"))

RECORDED = TESTS / "compat" / "grain"
MOST_STATES = 40


def states_of(iterator):
    """The state before each element."""
    found = []
    for _ in range(MOST_STATES):
        found.append(iterator.get_state())
        try:
            next(iterator)
        except StopIteration:
            break
    return found


def main():
    import grain.python as grain

    from grain_pipelines import PIPELINES, STATEFUL, digest_of, loader_states

    digests = {name: digest_of(make(grain)) for name, make in PIPELINES.items()}
    write("digests.json", digests)
    states = {name: states_of(iter(make(grain))) for name, make in STATEFUL.items()}
    for name, loader in loader_states(grain):
        taken = states_of(iter(loader))
        states[f"loader_{name}"] = [json.loads(state) for state in taken]
    write("states.json", states)


def write(name, content):
    lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(content.items()))
    (RECORDED / name).write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
