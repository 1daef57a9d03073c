"""Attacks loaderx with damaged input, each case in a process that may crash, hang or run out.

A target is a module with ``check(seed) -> str``: it makes one damaged input from the seed, gives it
to loaderx, and says how that went (``"data"`` if the result was right, ``"refused"`` for a
`LoaderxError`).  Whatever else comes out of it is a failure, and so are a crash of the process, a
case that takes longer than ``LIMIT_S``, and memory beyond ``MEMORY_BYTES``.

The suite runs a few hundred cases (`test_fuzz.py`).  For a long run::

    python tests/support/fuzz.py files --count 20000
    python tests/support/fuzz.py states --count 20000
    python tests/support/fuzz.py files --first 4711 --count 1      # one case again
"""

from __future__ import annotations

import argparse
import importlib
import resource
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

TARGETS = ("arrow", "files", "images", "lines", "parquet", "states", "tf")
LIMIT_S = 120.0  # no case needs a second; a busy machine must not look like a hang
MEMORY_BYTES = 4 << 30  # of address space, of which NumPy and its threads take one
BLOCK = 500  # cases in one process


class Outcome:
    """What came of a run: how often each outcome was seen, and the cases that failed."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.failures: list[tuple[int, str]] = []

    def add(self, seed: int, what: str) -> None:
        self.counts[what] += 1

    def fail(self, seed: int, kind: str, detail: str) -> None:
        self.counts[kind] += 1
        self.failures.append((seed, f"{kind}: {detail}"))

    def __str__(self) -> str:
        total = sum(self.counts.values())
        seen = ", ".join(f"{count:,} {what}" for what, count in sorted(self.counts.items()))
        return f"{total:,} cases: {seen}"


def attack(target: str, first: int, count: int) -> Outcome:
    """Runs the cases of ``first`` to ``first + count - 1``; after a crash it goes on behind it."""
    outcome = Outcome()
    stop = first + count
    while first < stop:
        first = _attack_block(target, first, min(stop, first + BLOCK), outcome)
    return outcome


def _attack_block(target: str, first: int, stop: int, outcome: Outcome) -> int:
    """Runs cases in one process, until all are done or one has ended it; the next case to run."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            [sys.executable, __file__, target, "--first", str(first), "--count", str(stop - first),
             "--child"],
            cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
        assert child.stdout is not None
        lines: SimpleQueue[str | None] = SimpleQueue()
        reader = Thread(target=_read_lines, args=(child.stdout, lines), daemon=True)
        reader.start()
        seed = first
        try:
            while (line := lines.get(timeout=LIMIT_S)) is not None:
                what, _, detail = line.partition("\t")
                if what.startswith("foreign"):
                    outcome.fail(seed, what, detail)
                else:
                    outcome.add(seed, what)
                seed += 1
        except Empty:
            outcome.fail(seed, "hang", f"no result after {LIMIT_S:.0f} s")
            child.kill()
        code = child.wait()
        reader.join()
        child.stdout.close()
        if seed < stop and not (outcome.failures and outcome.failures[-1][0] == seed):
            errors.seek(0)
            outcome.fail(seed, "crash", f"exit code {code}\n{errors.read()[-2000:]}")
        return seed if seed == stop else seed + 1


def _read_lines(stream: object, lines: SimpleQueue[str | None]) -> None:
    for line in stream:  # type: ignore[attr-defined]
        lines.put(line.rstrip("\n"))
    lines.put(None)


def _run_cases(target: str, first: int, count: int) -> None:
    """The child: one line for each case."""
    check = importlib.import_module(f"fuzz_{target}").check
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    for seed in range(first, first + count):
        try:
            line = check(seed)
        except BaseException as error:
            line = f"foreign {type(error).__name__}\t{_shown(error)}"
        print(line, flush=True)


def _shown(error: BaseException) -> str:
    """The error and the way that it came, in one line."""
    found = [f"{error}"[:300]]
    cause: BaseException | None = error
    while cause is not None and len(found) < 6:
        way = traceback.extract_tb(cause.__traceback__)[-5:]
        found.append(type(cause).__name__ + " at " + " < ".join(
            f"{Path(one.filename).name}:{one.lineno}" for one in reversed(way)
        ))  # fmt: skip
        cause = cause.__cause__ or cause.__context__
    return " | ".join(found).replace("\n", " ")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        sys.path.insert(0, str(Path(__file__).parent))
        _run_cases(arguments.target, arguments.first, arguments.count)
        return 0
    outcome = attack(arguments.target, arguments.first, arguments.count)
    print(outcome)
    for seed, detail in outcome.failures[:20]:
        print(f"--- seed {seed}\n{detail}")
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())
