"""loaderx beside what users would pick instead: one run, one machine.

    python benchmarks/run.py [--quick] [--only WORKLOAD ...] [--peers NAME ...] [--envs DIR]

A run of all workloads with all peers goes into `results/`, a quick one into `results-quick/`, and
any other into `results-part/`; git ignores the last two.
Every measurement is a process of its own.  Rounds go through all contenders in turn, so that a
machine that gets slower slows all of them.  `docs/benchmarks.md` explains the method.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import contenders
from suite import data, report, tree
from suite.augmented import wrong_effects
from suite.checks import MASK, disagreement
from suite.entry import Entry, say
from suite.environments import (
    NotInstalledError,
    environment,
    interpreter,
    last_line,
    name_of,
)
from suite.workloads import WORKLOADS, Workload

HERE = Path(__file__).parent
ROOT = HERE.parent
CHECK_RECORDS = 20_000
SAMPLE_S = 0.05
TIMEOUT_S = 150
FEWEST_ROUNDS = 5  # of a run that becomes the results


class Suite:
    """One run: its options, its folders, and what it has found out so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.quick: bool = options.quick
        self.data = Path(options.data).resolve() / ("quick" if self.quick else "full")
        self.envs = Path(options.envs).resolve()
        self.lock = threading.Lock()
        self.references: dict[tuple[str, int], dict[str, Any]] = {}
        self.states = tempfile.TemporaryDirectory(prefix="bench-states-")
        self.contenders = chosen_contenders(options)

    # Entries --------------------------------------------------------------------------------------

    def entries(self, workload: Workload, missing: str | None) -> list[Entry]:
        """What is to be measured, and what cannot be, with its reason."""
        found = []
        for contender in self.contenders:
            ways = contender.WAYS.get(workload.does)
            if not ways and not contender.CANNOT:
                continue  # a loop by hand, written for some workloads only
            if not ways:
                reason = contender.CANNOT.get(workload.does, "not written")
                entry = Entry(contender, workload, "-", "")
                entry.fail("unsupported", reason)
                found.append(entry)
                continue
            for variant, how in ways.items():
                entry = Entry(contender, workload, variant, how)
                found.append(entry)
                if missing:
                    entry.fail("unavailable", missing)
                    continue
                try:
                    entry.python = interpreter(contender, self.envs)
                except NotInstalledError as error:
                    entry.fail("unavailable", f"cannot be installed: {error}")
        return found

    def records(self, workload: Workload) -> int:
        count = workload.quick_records if self.quick else workload.records
        return max(4 * workload.batch_size, count // 8) if self.options.tiny else count

    def sizes(self, workload: Workload) -> list[int]:
        """Numbers of records to choose from: slow contenders take fewer."""
        most = self.records(workload)
        least = min(most, (4 if self.quick else workload.least) * workload.batch_size)
        return sorted({max(most >> shift, least) for shift in (0, 2, 4, 6)})

    # Processes ------------------------------------------------------------------------------------

    def child(
        self, entry: Entry, mode: str, sample: bool = False, **more: Any
    ) -> dict[str, Any] | None:
        """What a measurement answers, or None after it has failed."""
        request = {
            "contender": entry.key,
            "file": getattr(entry.contender, "FILE", None),
            "workload": entry.workload.name,
            "variant": entry.variant,
            "data": str(self.data),
            "mode": mode,
            "records": self.records(entry.workload),
            "sizes": self.sizes(entry.workload),
            "seconds": self.options.seconds or entry.seconds,
            "check_records": min(CHECK_RECORDS, self.records(entry.workload)),
            **more,
        }
        with tempfile.TemporaryDirectory(prefix="bench-") as name:
            folder = Path(name)
            asked, answered = folder / "request.json", folder / "answer.json"
            asked.write_text(json.dumps(request))
            outcome = tree.run(
                [str(entry.python), str(HERE / "child.py"), str(asked), str(answered)],
                self.environment(folder),
                folder,
                self.options.timeout * (3 if mode in ("save", "prepare") else 1),
                SAMPLE_S if sample else None,
            )
            if outcome.late:
                reason = f"{mode}: not ready after {outcome.took_s:.0f} s, and ended"
                return entry.fail("error", reason, outcome.errors)
            if not answered.exists():
                reason = last_line(outcome.errors) or f"exit code {outcome.code}"
                return entry.fail("error", f"{mode}: {reason}", outcome.errors)
            answer: dict[str, Any] = json.loads(answered.read_text())
        if "unsupported" in answer:
            return entry.fail("unavailable", answer["unsupported"])
        entry.versions = answer["versions"]
        entry.import_s = answer["import_s"]
        entry.note = answer.get("note", entry.note)
        if sample:
            entry.peak_mb = outcome.peak_mb
        return answer

    def environment(self, folder: Path) -> dict[str, str]:
        """That of the caller; our sources first, and compiled files kept with the data."""
        found = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        path = [str(ROOT / "src"), *filter(None, [found.get("PYTHONPATH")])]
        return found | {
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHONPYCACHEPREFIX": str(self.data.parent / "pycache"),
            "JAX_PLATFORMS": "cpu",
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HOME": str(self.data.parent / "hf-home"),
            "TMPDIR": str(folder),
        }

    # Checking -------------------------------------------------------------------------------------

    def reference(self, workload: Workload, size: int) -> dict[str, Any]:
        """What NumPy by hand makes of the first records: every contender must agree with it."""
        key = (workload.does, size)
        with self.lock:
            if key not in self.references:
                self.references[key] = self.make_reference(workload, size)
        return self.references[key]

    def make_reference(self, workload: Workload, size: int) -> dict[str, Any]:
        by_hand = importlib.import_module("contenders.numpy_by_hand")
        variant = next(iter(by_hand.WAYS[workload.does]))
        entry = Entry(by_hand, workload, variant, "", Path(sys.executable))
        answer = self.child(entry, "reference", records=size)
        if answer is None:
            raise SystemExit(f"no reference for {workload.name}: {entry.reason}")
        return answer

    def check(self, entry: Entry) -> None:
        """Chooses sizes, compares with the reference, and measures memory; nothing is timed."""
        self.prepare(entry)
        if entry.status != "ok":
            return
        if entry.workload.does == "resume":
            self.check_resume(entry)
            return
        answer = self.child(entry, "check", sample=True)
        if answer is not None:
            self.agree(entry, answer)

    def agree(self, entry: Entry, answer: dict[str, Any]) -> None:
        """Are these the bytes of the reference?"""
        entry.size, entry.epochs = answer["size"], answer["epochs"]
        entry.epoch_sum = answer["epoch_sum"]
        expected = self.reference(entry.workload, entry.size)
        tolerance = 0.05 if entry.workload.own_draws else 0.01 if entry.own_decoder else None
        wrong = disagreement(answer["digest"], expected["digest"], tolerance)
        if wrong is None and entry.workload.shuffled and not answer["shuffled"]:
            entry.fail("error", "NOT SHUFFLED: the records come as they lie in the data")
            return
        if wrong is None and entry.workload.own_draws:
            wrong = wrong_effects(answer["effects"], entry.workload.does)
        if wrong is None and tolerance is None and entry.epoch_sum != expected["epoch_sum"]:
            wrong = f"sum {entry.epoch_sum}, expected {expected['epoch_sum']}"
        if wrong:
            entry.fail("error", f"CHECKSUM DISAGREES: {wrong}")

    def prepare(self, entry: Entry) -> None:
        """What a contender writes once in a form of its own, without a clock."""
        if not hasattr(entry.contender, "prepare"):
            return
        stamp = self.data / f"{entry.key}-{entry.workload.does}.json"
        wanted = {"records": self.largest(entry.workload.does), "version": data.VERSION}
        if stamp.exists() and json.loads(stamp.read_text()) == wanted:
            return
        made = self.child(entry, "prepare", records=wanted["records"])
        if made is not None:
            stamp.write_text(json.dumps(wanted))

    def largest(self, does: str) -> int:
        return max(self.records(one) for one in WORKLOADS.values() if one.does == does)

    def check_resume(self, entry: Entry) -> None:
        state = self.state_of(entry)
        state.mkdir(parents=True, exist_ok=True)
        answer = self.child(entry, "save", state=str(state))
        if answer is None:
            return
        self.agree_on_rest(entry, answer)
        if entry.status == "ok":
            self.child(entry, "restore", sample=True, state=str(state))

    def agree_on_rest(self, entry: Entry, answer: dict[str, Any]) -> None:
        entry.size, entry.state_bytes = self.records(entry.workload), answer["state_bytes"]
        if not answer["permutation"]:
            entry.fail("error", "an epoch is not every record once")
        elif not answer["shuffled"]:
            entry.fail("error", "NOT SHUFFLED: the records come as they lie in the data")
        elif not answer["exact"]:
            entry.fail("error", "what follows after restoring is not the rest of the epoch")

    def look(self, group: list[Entry]) -> None:
        """A quick look at all variants of a contender, in one process."""
        first = group[0]
        self.prepare(first)
        answer = None
        if first.status == "ok":
            answer = self.child(first, "several", True, variants=[one.variant for one in group])
        for entry in group:
            if answer is None:
                entry.fail(first.status, first.reason)
                continue
            entry.versions, entry.peak_mb = first.versions, first.peak_mb
            found = answer["each"][entry.variant]
            if "error" in found:
                entry.fail("error", found["error"], found["errors"])
            elif "unsupported" in found:
                entry.fail("unavailable", found["unsupported"])
            else:
                entry.note = found["note"]
                (self.agree_on_rest if "exact" in found else self.agree)(entry, found)
                if entry.status == "ok":
                    self.take(entry, found)

    def state_of(self, entry: Entry) -> Path:
        return Path(self.states.name) / f"{entry.key}-{entry.variant}"

    # Timing ---------------------------------------------------------------------------------------

    def time(self, entry: Entry) -> None:
        """One round of one contender."""
        if entry.workload.does == "resume":
            answer = self.child(entry, "restore", state=str(self.state_of(entry)))
        else:
            answer = self.child(entry, "timed", records=entry.size, epochs=entry.epochs)
        if answer is not None:
            self.take(entry, answer)

    def take(self, entry: Entry, answer: dict[str, Any]) -> None:
        entry.firsts.append(answer["first_s"])
        if entry.workload.does == "resume":
            entry.rates.append(answer["first_s"])
            entry.cpus.append(answer["cpu_s"])
            return
        if answer["records"] != entry.size * entry.epochs:
            entry.fail("error", f"a timed round made {answer['records']} records")
            return
        same = entry.workload.own_draws or answer["sum"] == entry.epoch_sum * entry.epochs & MASK
        if not same:
            entry.fail("error", "CHECKSUM DISAGREES: a timed round made other bytes")
            return
        entry.rates.append(answer["rate"])
        entry.cpus.append(answer["cpu_per_record"])

    def measure(self, workload: Workload, missing: str | None) -> list[Entry]:
        say(f"{workload.name}: {workload.title}")
        entries = self.entries(workload, missing)
        alive = [entry for entry in entries if entry.status == "ok"]
        if self.quick:
            self.look_at_all(alive)
        else:
            for entry in alive:
                self.check(entry)
            for number in range(self.options.rounds):
                self.round([entry for entry in alive if entry.status == "ok"], number)
            for entry in alive:
                if entry.status == "ok":
                    entry.judge()
        for entry in entries:
            if entry.status == "ok":
                say(f"  {entry.label()}: {report.value_with_cpu(entry.row())}")
        return entries

    def round(self, entries: list[Entry], number: int) -> None:
        """All in turn; another one goes first every time."""
        turn = number % max(1, len(entries))
        for entry in [*entries[turn:], *entries[:turn]]:
            self.time(entry)

    def look_at_all(self, entries: list[Entry]) -> None:
        """Two at a time, since figures of a quick look mean little."""
        groups: dict[str, list[Entry]] = {}
        for entry in entries:
            groups.setdefault(entry.key, []).append(entry)
        with ThreadPoolExecutor(2) as pool:
            try:
                list(pool.map(self.look, groups.values()))
            except BaseException:  # Ctrl-C comes here alone: the other threads must hear of it
                tree.stop.set()
                raise


# The script ---------------------------------------------------------------------------------------


def chosen_contenders(options: argparse.Namespace) -> list[Any]:
    """NumPy by hand is always among them: it is the reference."""
    modules = [importlib.import_module(f"contenders.{name}") for name in contenders.NAMES]
    known = {name for one in modules for name in (one.__name__.rpartition(".")[2], name_of(one))}
    unknown = sorted(set(options.peers or ()) - known)
    if unknown:
        listed = ", ".join(sorted({name_of(one) for one in modules}))
        raise SystemExit(f"no such peer: {', '.join(unknown)}; there are {listed}")
    if options.peers is not None:
        wanted = {"numpy_by_hand", "loaderx_", *options.peers}
        modules = [
            module
            for module in modules
            if {module.__name__.rpartition(".")[2], name_of(module)} & wanted
        ]
    return modules + [from_file(path) for path in options.contender]


def from_file(path: Path) -> Any:
    """A contender of your own."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.__dict__["FILE"] = str(path.resolve())
    return module


def surroundings(suite: Suite) -> dict[str, Any]:
    """What a reader needs to judge the figures; ``load`` is that of others, before we begin."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return {
        "when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "memory_gb": round(memory, 1),
        "load_before": round(os.getloadavg()[0], 2),
        "rounds": 1 if suite.quick else suite.options.rounds,
        "quick": suite.quick,
    }


def draw(suite: Suite, found: Path, picture: Path) -> None:
    """The plot, in an environment of its own unless Matplotlib is here."""
    try:
        if importlib.util.find_spec("matplotlib"):
            python = Path(sys.executable)
        else:
            python = environment("plot", ["matplotlib"], suite.envs)
        command = [str(python), str(HERE / "suite" / "plot.py"), str(found), str(picture)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            say(f"no plot: {last_line(done.stderr)}")
    except (NotInstalledError, subprocess.TimeoutExpired) as error:
        say(f"no plot: {error}")


def cannot_update(path: Path, suite: Suite, names: list[str]) -> str | None:
    """Why a new run cannot take the place of some old rows; None if it can.

    Rounds of one workload belong together, so that all its rows are replaced, or none.
    """
    try:
        old = json.loads(path.read_text())
        about, rows = old["about"], old["rows"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{path.name} cannot be read: {error}"
    here = surroundings(suite)
    for name in ("cores", "memory_gb", "system", "python", "rounds", "quick"):
        if about.get(name) != here[name]:
            return f"the old run has {name} {about.get(name)}, this one {here[name]}"
    keys = {Entry(one, WORKLOADS[names[0]], "", "").key for one in suite.contenders}
    again = [row for row in rows if row["workload"] in names]
    lost = {row["title"] for row in again if row["contender"] not in keys}
    return f"it would lose {', '.join(sorted(lost))}" if lost else None


def updated(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Old results in which some workloads, with all their rows, are new."""
    fresh = {row["workload"] for row in new["rows"]}
    rows: list[dict[str, Any]] = []
    for name in WORKLOADS:
        source = new if name in fresh else old
        rows += [row for row in source["rows"] if row["workload"] == name]
    about = dict(old["about"])
    when = f"{new['about']['when']}, load {new['about']['load_before']}"
    about["again"] = about.get("again", {}) | dict.fromkeys(sorted(fresh), when)
    other = {
        title: found
        for title, found in new["about"]["versions"].items()
        if found != about["versions"].get(title)
    }
    others = {k: v for k, v in about.get("other_versions", {}).items() if k not in fresh}
    about["other_versions"] = others | (dict.fromkeys(sorted(fresh), other) if other else {})
    return {"about": about, "rows": rows}


def write_pages(out: Path, result: dict[str, Any]) -> None:
    """The tables; and where these are the results, the pages that quote them."""
    (out / "results.md").write_text(report.page(result))
    if out == (HERE / "results").resolve():
        for page, write in report.PAGES.items():
            (ROOT / page).write_text(write((ROOT / page).read_text(), result))


def keep(result: dict[str, Any], out: Path) -> None:
    """What has been measured so far, beside the results: a run may not come to its end."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "unfinished.json").write_text(json.dumps(result, indent=1) + "\n")


def usual_place(options: argparse.Namespace) -> str:
    """Only a run of everything, with all peers, may take the place of the results."""
    if options.quick or options.tiny:
        return "results-quick"
    peers = options.peers is None and not options.contender
    whole = options.update or not options.only
    return "results" if peers and whole and options.rounds >= FEWEST_ROUNDS else "results-part"


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures loaderx beside its peers.")
    parser.add_argument("--quick", action="store_true", help="small and rough: does it work?")
    parser.add_argument("--tiny", action="store_true", help="smaller still, for the tests")
    parser.add_argument(
        "--only", nargs="+", choices=WORKLOADS, metavar="WORKLOAD", help=", ".join(WORKLOADS)
    )
    parser.add_argument(
        "--peers", nargs="*", metavar="NAME", help="beside NumPy and loaderx; none for them alone"
    )
    parser.add_argument("--contender", nargs="+", type=Path, default=[], metavar="FILE.py")
    parser.add_argument("--rounds", type=int, default=FEWEST_ROUNDS)
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT_S, metavar="S", help="of one measurement"
    )
    parser.add_argument(
        "--seconds", type=float, default=None, metavar="S", help="of a measurement, its start aside"
    )
    parser.add_argument("--envs", default=ROOT / ".venv-bench", metavar="DIR")
    parser.add_argument("--data", default=ROOT / ".bench-data", metavar="DIR")
    parser.add_argument("--out", type=Path, default=None, metavar="DIR")
    parser.add_argument("--no-plot", action="store_true")
    parser.add_argument(
        "--update", action="store_true", help="with --only: measure these again, keep the others"
    )
    parser.add_argument(
        "--pages", action="store_true", help="measure nothing, write the pages of old results anew"
    )
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    out: Path = (options.out or HERE / usual_place(options)).resolve()

    if options.pages:
        write_pages(out, json.loads((out / "results.json").read_text()))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # children are ended on the way out
    tree.adopt_orphans()
    suite = Suite(options)
    with suite.states:
        reason = options.update and cannot_update(
            out / "results.json", suite, options.only or list(WORKLOADS)
        )
        if reason:
            parser.error(f"--update: {reason}")
        return measure_all(suite, options, out)


def measure_all(suite: Suite, options: argparse.Namespace, out: Path) -> int:
    begun = perf_counter()
    about = surroundings(suite)
    names = options.only or list(WORKLOADS)
    missing = data.make(suite.data, names, suite.quick)
    entries: list[Entry] = []
    for name in names:
        say(f"after {(perf_counter() - begun) / 60:.1f} minutes:")
        entries += suite.measure(WORKLOADS[name], missing.get(name))
        about["took_min"] = round((perf_counter() - begun) / 60, 1)
        about["versions"] = {
            entry.contender.TITLE: entry.versions for entry in entries if entry.versions
        }
        result = {"about": about, "rows": [entry.row() for entry in entries]}
        keep(result, out)
    out.mkdir(parents=True, exist_ok=True)
    if options.update:
        result = updated(json.loads((out / "results.json").read_text()), result)
    (out / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    (out / "unfinished.json").unlink()
    write_pages(out, result)
    if not options.no_plot:
        draw(suite, out / "results.json", out / "results.png")
    print(report.summary(result))
    return 1 if any(entry.status in ("error", "invalid") for entry in entries) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("stopped: all processes are ended; finished workloads are in unfinished.json")
        sys.exit(130)
