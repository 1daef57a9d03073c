"""One run: what is measured, in which order, and what was found out so far."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from suite import agreement, child_process, data, report, slow_server, tree
from suite.contender_modules import chosen_contenders
from suite.entry import Entry, say
from suite.environments import NotInstalledError, interpreter
from suite.settings import Settings
from suite.workloads import Workload

FEW_ROUNDS = 2  # are enough for what is so many times slower
FAR_BEHIND = 4.0  # than the fastest row
SLOWER_VARIANT = 1.25  # than another variant of the same loader
ALWAYS = ("numpy_by_hand", "jax_by_hand", "loaderx_")


class Suite:
    """One run: its settings, its contenders, and what it has found out so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.settings = Settings.from_options(options)
        self.contenders = chosen_contenders(options)
        self.lock = threading.Lock()
        self.references: dict[tuple[str, int], dict[str, Any]] = {}
        self.states = tempfile.TemporaryDirectory(prefix="bench-states-")
        self.url = ""
        """Of the server that serves the data, while a workload needs one."""

    def ask(self, entry: Entry, mode: str, sample: bool = False, **more: Any) -> Any:
        return child_process.ask(self.settings, entry, mode, sample, url=self.url, **more)

    # Entries --------------------------------------------------------------------------------------

    def entries(self, workload: Workload, missing: str | None) -> list[Entry]:
        """What is to be measured, and what cannot be, with its reason."""
        found = []
        for contender in self.contenders:
            ways = contender.WAYS.get(workload.does)
            if not ways and not contender.CANNOT:
                continue  # a loop by hand, or a reader, written for some workloads only
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
                    entry.python = interpreter(contender, self.settings.envs)
                except NotInstalledError as error:
                    entry.fail("unavailable", f"cannot be installed: {error}")
        return found

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
        answer: dict[str, Any] | None = self.ask(entry, "reference", records=size)
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
        answer = self.ask(entry, "check", sample=True)
        if answer is not None:
            self.agree(entry, answer)

    def agree(self, entry: Entry, answer: dict[str, Any]) -> None:
        entry.size, entry.epochs = answer["size"], answer["epochs"]
        entry.epoch_sum = answer["epoch_sum"]
        agreement.agree(entry, answer, self.reference(entry.workload, entry.size))

    def prepare(self, entry: Entry) -> None:
        """What a contender writes once in a form of its own, without a clock."""
        does = entry.workload.does
        if not hasattr(entry.contender, "prepare"):
            return
        stamp = self.settings.data / f"{entry.key}-{does}.json"
        wanted = {"records": self.settings.largest(does), "version": data.VERSION}
        if stamp.exists() and json.loads(stamp.read_text()) == wanted:
            return
        if self.ask(entry, "prepare", records=wanted["records"]) is not None:
            stamp.write_text(json.dumps(wanted))

    def check_resume(self, entry: Entry) -> None:
        state = self.state_of(entry)
        state.mkdir(parents=True, exist_ok=True)
        answer = self.ask(entry, "save", state=str(state))
        if answer is None:
            return
        self.agree_on_rest(entry, answer)
        if entry.status == "ok":
            self.ask(entry, "restore", sample=True, state=str(state))

    def agree_on_rest(self, entry: Entry, answer: dict[str, Any]) -> None:
        entry.size = self.settings.records(entry.workload)
        entry.state_bytes = answer["state_bytes"]
        agreement.agree_on_rest(entry, answer)

    def state_of(self, entry: Entry) -> Path:
        return Path(self.states.name) / f"{entry.key}-{entry.variant}"

    # A quick look ---------------------------------------------------------------------------------

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

    def look(self, group: list[Entry]) -> None:
        """A quick look at all variants of a contender, in one process."""
        first = group[0]
        self.prepare(first)
        answer = None
        if first.status == "ok":
            answer = self.ask(first, "several", True, variants=[one.variant for one in group])
        for entry in group:
            if answer is None:
                entry.fail(first.status, first.reason)
                continue
            entry.versions, entry.peak_mb = first.versions, first.peak_mb
            self.take_look(entry, answer["each"][entry.variant])

    def take_look(self, entry: Entry, found: dict[str, Any]) -> None:
        if "error" in found:
            entry.fail("error", found["error"], found["errors"])
        elif "unsupported" in found:
            entry.fail("unavailable", found["unsupported"])
        else:
            entry.note = found["note"]
            (self.agree_on_rest if "exact" in found else self.agree)(entry, found)
            if entry.status == "ok":
                self.take(entry, found)

    # Timing ---------------------------------------------------------------------------------------

    def time(self, entry: Entry) -> None:
        """One round of one contender."""
        if entry.workload.does == "resume":
            answer = self.ask(entry, "restore", state=str(self.state_of(entry)))
        else:
            answer = self.ask(entry, "timed", records=entry.size, epochs=entry.epochs)
        if answer is not None:
            self.take(entry, answer)

    def take(self, entry: Entry, answer: dict[str, Any]) -> None:
        """The figures of a round."""
        entry.firsts.append(answer["first_s"])
        if entry.workload.does == "resume":
            entry.rates.append(answer["first_s"])
            entry.cpus.append(answer["cpu_s"])
            return
        wrong = agreement.wrong_round(entry, answer)
        if wrong:
            entry.fail("error", wrong)
            return
        entry.rates.append(answer["rate"])
        entry.cpus.append(answer["cpu_per_record"])

    def measure(self, workload: Workload, missing: str | None) -> list[Entry]:
        say(f"{workload.name}: {workload.title}")
        entries = self.entries(workload, missing)
        alive = [entry for entry in entries if entry.status == "ok"]
        with self.served(workload):
            if self.settings.quick:
                self.look_at_all(alive)
            else:
                self.measure_in_rounds(alive)
        for entry in entries:
            if entry.status == "ok":
                say(f"  {entry.label()}: {report.value_with_cpu(entry.row())}")
        return entries

    @contextlib.contextmanager
    def served(self, workload: Workload) -> Any:
        """Runs a slow web server beside a workload that reads from one."""
        if not workload.cold:
            yield
            return
        folder = self.settings.data / workload.does
        folder.mkdir(parents=True, exist_ok=True)
        with slow_server.serving(str(folder)) as self.url:
            try:
                yield
            finally:
                self.url = ""

    def measure_in_rounds(self, entries: list[Entry]) -> None:
        for entry in entries:
            self.check(entry)
        for number in range(self.settings.rounds):
            self.round([entry for entry in entries if entry.status == "ok"], number)
        for entry in entries:
            if entry.status == "ok":
                entry.judge()

    def round(self, entries: list[Entry], number: int) -> None:
        """All in turn; another one goes first every time.  Some are known well enough by then."""
        turn = number % max(1, len(entries))
        for entry in [*entries[turn:], *entries[:turn]]:
            if number < FEW_ROUNDS or not far_behind(entry, entries):
                self.time(entry)


def far_behind(entry: Entry, entries: list[Entry]) -> bool:
    """Is it so much slower than others that more rounds would change no ratio?"""
    if entry.key in ALWAYS or entry.workload.unit == "s":
        return False
    done = [one for one in entries if one.status == "ok"]
    fastest = max(max(one.rates) for one in done)
    own = max(max(one.rates) for one in done if one.key == entry.key)
    reached = max(entry.rates)
    return reached * FAR_BEHIND < fastest or reached * SLOWER_VARIANT < own
