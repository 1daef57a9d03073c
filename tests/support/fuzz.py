"""Attacks loaderx with damaged input, each case in a process that may crash, hang or run out.

A target is a module with ``check(seed) -> str``: it makes one damaged input from the seed, gives it
to loaderx, and says how that went (``"data"`` if the result was right, ``"refused"`` for a
`LoaderxError`).  Whatever else comes out of it is a failure, and so are a crash of the process, a
case that takes longer than ``LIMIT_S``, memory beyond ``MEMORY_BYTES``, and a file that is opened
outside of the folder of the case (as far as Python opens it).

The suite runs a few hundred cases (`test_fuzz.py`).  For a long run, whose counts are printed as it
goes, and which goes on at any seed::

    python tests/support/fuzz.py all --count 60000                 # 60,000 cases of all targets
    python tests/support/fuzz.py all --first 3000 --count 60000    # from the 3,000th seed on
    python tests/support/fuzz.py files --first 4711 --count 1      # one case again
"""

from __future__ import annotations

import argparse
import importlib
import os
import resource
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

TARGETS = (
    "arrow", "cache", "files", "folders", "hdf5", "images", "lines", "names", "parquet", "readme",
    "servers", "states", "tf",
)  # fmt: skip
MAY_CRASH = ("hdf5",)  # libhdf5 itself: such a crash or hang is counted, and is no failure
ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 120.0  # no case needs a second; a busy machine must not look like a hang
MEMORY_BYTES = 4 << 30  # of address space, of which NumPy and its threads take one
BLOCK = 500  # cases in one process


class Outcome:
    """What came of a run: how often each outcome was seen, and the cases that failed."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.failures: list[tuple[int, str]] = []
        self.last = -1  # the case that failed last

    def add(self, seed: int, what: str) -> None:
        self.counts[what] += 1

    def fail(self, seed: int, kind: str, detail: str, is_known: bool = False) -> None:
        self.last = seed
        self.counts[f"{kind} of a library" if is_known else kind] += 1
        if not is_known:
            self.failures.append((seed, f"{kind}: {detail}"))

    def __str__(self) -> str:
        total = sum(self.counts.values())
        seen = ", ".join(f"{count:,} {what}" for what, count in sorted(self.counts.items()))
        return f"{total:,} cases: {seen}"


def attack(target: str, first: int, count: int, outcome: Outcome | None = None) -> Outcome:
    """Runs the cases of ``first`` to ``first + count - 1``; after a crash it goes on behind it."""
    outcome = outcome or Outcome()
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
                if what.startswith(("foreign", "outside")):
                    outcome.fail(seed, what, detail)
                else:
                    outcome.add(seed, what)
                seed += 1
        except Empty:
            outcome.fail(seed, "hang", f"no result after {LIMIT_S:.0f} s", target in MAY_CRASH)
            child.kill()
        code = child.wait()
        reader.join()
        child.stdout.close()
        if seed < stop and outcome.last != seed:
            errors.seek(0)
            detail = f"exit code {code}\n{errors.read()[-2000:]}"
            outcome.fail(seed, "crash", detail, target in MAY_CRASH)
        return seed if seed == stop else seed + 1


def _read_lines(stream: object, lines: SimpleQueue[str | None]) -> None:
    for line in stream:  # type: ignore[attr-defined]
        lines.put(line.rstrip("\n"))
    lines.put(None)


def _run_cases(target: str, first: int, count: int) -> None:
    """The child: one line for each case."""
    check = importlib.import_module(f"fuzz_{target}").check
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    outside = _watched()
    for seed in range(first, first + count):
        outside.clear()
        try:
            line = check(seed)
        except BaseException as error:
            line = f"foreign {type(error).__name__}\t{_shown(error)}"
        print(f"outside\t{outside[:3]}" if outside else line, flush=True)


def _watched() -> list[str]:
    """A list that gets the paths of files that are opened outside of where a case has its own."""
    own = [os.getcwd(), str(ROOT), sys.prefix, sys.base_prefix, "/proc", "/dev", "/sys", "/usr"]
    own += ["/lib", "/etc/ssl", "/etc/mime.types", "/etc/localtime", "/etc/apache2", "/etc/httpd"]
    own += ["/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/gai.conf"]
    own = [os.path.realpath(one) for one in own] + own
    found: list[str] = []

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and isinstance(arguments[0], (str, bytes)):
            path = os.path.realpath(os.fsdecode(arguments[0]).replace("\0", ""))
            if not any(path == one or path.startswith(f"{one}/") for one in own):
                found.append(path)

    sys.addaudithook(watch)
    return found


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
    parser.add_argument("target", choices=("all", *TARGETS))
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        sys.path.insert(0, str(Path(__file__).parent))
        _run_cases(arguments.target, arguments.first, arguments.count)
        return 0
    chosen = TARGETS if arguments.target == "all" else (arguments.target,)
    return 1 if long_run(chosen, arguments.first, arguments.count) else 0


def long_run(targets: tuple[str, ...], first: int, count: int) -> int:
    """Runs so many cases, some of each target in turn, and says how it goes; returns failures."""
    outcomes = {target: Outcome() for target in targets}
    each, at = -(-count // len(targets)), first
    while at < first + each:
        step = min(BLOCK, first + each - at)
        for target in targets:
            outcome = outcomes[target]
            before = len(outcome.failures)
            attack(target, at, step, outcome)
            print(f"{target} up to seed {at + step}: {outcome}", flush=True)
            for seed, detail in outcome.failures[before : before + 20]:
                print(f"--- {target} seed {seed}\n{detail[:1500]}", flush=True)
        at += step
    total = Counter[str]()
    for outcome in outcomes.values():
        total.update(outcome.counts)
    print(f"{sum(total.values()):,} cases of {len(targets)} targets:", dict(sorted(total.items())))
    return sum(len(outcome.failures) for outcome in outcomes.values())


if __name__ == "__main__":
    sys.exit(main())
