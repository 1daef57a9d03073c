"""Lists what the installed Grain does otherwise than the one that `compat.grain` reproduces.

    .venv-grain-newest/bin/python tests/owners/grain/newest.py

Compared are public names, the bytes of the pipelines of `tests/support/grain_pipelines.py`, and
their states: with what the reproduced Grain gave when it was recorded (`record.py`), so whatever
differs is a change of Grain's, and no fault of ours.  If the installed Grain is a newer one, its
own tests are run as well.  The exit code is 0 whatever differs.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[2] / "src"), str(HERE.parents[1] / "support"), str(HERE)]

OURS = "loaderx.compat.grain"
MODULES = ("", ".checkpoint", ".constants", ".experimental", ".multiprocessing", ".samplers")
MODULES += (".sharding", ".sources", ".transforms")


def public_names(module: ModuleType) -> set[str]:
    """The functions, classes and constants of a module of Grain's."""
    found = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return {name for name, value in found.items() if not isinstance(value, ModuleType)}


def differing_names() -> list[str]:
    """Names that the installed Grain has and ours lacks."""
    found = []
    left_out = importlib.import_module(f"{OURS}.late_names").LEFT_OUT
    for inner in MODULES:
        try:
            theirs = importlib.import_module(f"grain{inner}")
        except ImportError:
            found.append(f"grain{inner} is gone")
            continue
        ours = {*dir(importlib.import_module(f"{OURS}{inner}")), *left_out}
        found += [f"grain{inner}.{name} is new" for name in sorted(public_names(theirs) - ours)]
    return found


def outcome(make: object, *args: object) -> object:
    """What a pipeline gives; the error if a newer Grain refuses it."""
    try:
        return make(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def differing(recorded: dict[str, object], now: dict[str, object], what: str) -> list[str]:
    """The entries of a recorded table that are others now."""
    return [
        f"{what} of {name}: {now[name]}" if isinstance(now[name], str) else f"{what} of {name}"
        for name in sorted(recorded)
        if recorded[name] != now.get(name)
    ]


def main() -> None:
    import grain.python as grain
    from record import RECORDED, states_of

    from grain_pipelines import PIPELINES, STATEFUL, digest_of, loader_states

    importlib.import_module("absl.flags").FLAGS.mark_as_parsed()  # its workers ask for flags
    reproduced, installed = importlib.import_module(OURS).GRAIN_VERSION, version("grain")
    digests = {n: outcome(lambda m=m: digest_of(m(grain))) for n, m in PIPELINES.items()}
    states = {n: outcome(lambda m=m: states_of(iter(m(grain)))) for n, m in STATEFUL.items()}
    for name, loader in loader_states(grain):
        taken = outcome(lambda loader=loader: [json.loads(s) for s in states_of(iter(loader))])
        states[f"loader_{name}"] = taken
    kept = [json.loads((RECORDED / name).read_text()) for name in ("digests.json", "states.json")]
    found = [
        *differing_names(),
        *differing(kept[0], digests, "the bytes"),
        *differing(kept[1], json.loads(json.dumps(states)), "the states"),
    ]
    print(f"Grain {installed}, the newest; {OURS} reproduces {reproduced}.")
    print(f"{len(found)} differences{':' if found else '.'}")
    for line in found:
        print(f"    {line}")
    if installed != reproduced:
        print(f"Cases of the tests of Grain {installed} that are not listed in exceptions.txt:")
        environment = Path(sys.executable).parents[1]
        subprocess.run([sys.executable, HERE / "run_tests.py", environment], check=False)
    print("None of this fails the target: Grain has made these changes since.")


if __name__ == "__main__":
    main()
