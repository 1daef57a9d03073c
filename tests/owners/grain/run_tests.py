"""Runs Grain's own tests against Grain and against `loaderx.compat.grain`.

    python tests/owners/grain/run_tests.py .venv-grain            # a summary, and what is missing
    python tests/owners/grain/run_tests.py .venv-grain map mix    # some files

The environment has Grain 0.2.18 and what its tests need (`requirements.txt`); its wheel ships them.
(`newest.py` runs them in an environment with a newer Grain, too.)
Each file runs twice in processes of its own: with Grain as it is, and with our package in its place
(`stand_in.py`).  A case counts if Grain passes it.  Cases that ours does not pass must stand in
`exceptions.txt`, with the reason.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parents[2] / "src"

FAST = (
    *("samplers", "data_sources", "record", "options", "operations", "load", "index_shuffle"),
    *("pack_and_batch", "transforms", "sharding", "base", "dataset", "batch", "cache", "filter"),
    *("flatmap", "interleave", "limit", "map", "mix", "packing", "packing_concat_then_split"),
    *("rebatch", "repeat", "shuffle", "slice", "source", "zip"),
    *("parquet_dataset", "tfrecord_dataset"),
)
WORKERS = ("data_loader", "prefetch", "process_prefetch", "elastic_iterator")
BARS = {"fast": 0.98, "workers": 0.85, "all": 0.985}
REASONS = {"order by worker", "shared-memory internals", "wording", "internals", "left out"}
TIMEOUT_S = 900

CONFTEST = """
from absl import flags
flags.FLAGS.mark_as_parsed()
"""

Outcomes = dict[str, bool]


def grain_folder(python: Path) -> Path:
    code = "import importlib.util as u; print(u.find_spec('grain').origin)"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return Path(found.stdout.strip()).parent


def run_file(python: Path, test: Path, against: str) -> Outcomes:
    """The cases of a file, and whether each passed; skipped ones are left out."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, *test.parts[test.parts.index("_src") : -1])  # messages have the end
        folder.mkdir(parents=True)
        shutil.copy(test, folder)
        (folder / "conftest.py").write_text(CONFTEST)
        paths = [str(folder)]
        if against == "loaderx":
            shutil.copy(HERE / "stand_in.py", folder)
            (folder / "sitecustomize.py").write_text("import stand_in\nstand_in.install()\n")
            paths.append(str(SOURCE))
        command = [
            python, "-c", "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))",
            "-v", "-p", "no:cacheprovider", test.name,
        ]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": "cpu"}
        output = run_for(TIMEOUT_S, command, folder, environment)
    if logs := os.environ.get("GRAIN_TEST_LOGS"):
        Path(logs).mkdir(exist_ok=True)
        Path(logs, f"{test.stem}.{against}.txt").write_text(output)
    return {
        f"{test.stem}.{kind}::{name}": outcome == "PASSED"
        for kind, name, outcome in re.findall(r"::(\S+)::(\S+) (PASSED|FAILED|ERROR)\b", output)
    }


def run_for(
    seconds: float, command: list[object], folder: Path, environment: dict[str, str]
) -> str:
    """What a command prints, until it ends or is ended with all processes that it has started."""
    process = subprocess.Popen(
        [str(word) for word in command], cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        return process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return f"{process.communicate()[0]}\nended after {seconds} s"


def read_exceptions() -> dict[str, str]:
    """Reasons by the pattern of the cases."""
    found = {}
    for line in (HERE / "exceptions.txt").read_text().splitlines():
        pattern, _, reason = line.partition("  # ")
        if pattern.strip() and not line.startswith("#"):
            assert reason.split(":")[0].strip() in REASONS, line
            found[pattern.strip()] = reason.strip()
    return found


def compare(name: str, baseline: Outcomes, ours: Outcomes) -> tuple[int, list[str]]:
    """The number of cases that count, and those that only Grain passes."""
    asked = [case for case, passed in baseline.items() if passed]
    return len(asked), [case for case in asked if not ours.get(case)]


def verdict(group: str, passed: int, fair: int) -> str:
    """How many of the cases pass that can be asked of anybody, and whether that is enough."""
    share = passed / fair if fair else 1.0
    is_enough = "as asked for" if share >= BARS[group] else f"less than {BARS[group]:.1%}"
    return f"{group}: {passed} of {fair} portable cases, {share:.2%}, {is_enough}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("environment", type=Path, help="the folder of the environment")
    parser.add_argument("files", nargs="*", help="names of test files, without _test.py")
    parser.add_argument("--baseline", type=Path, help="keep Grain's own results in this file")
    arguments = parser.parse_args()
    python = (arguments.environment / "bin" / "python").absolute()
    grain = grain_folder(python)
    tests = {path.stem.removesuffix("_test"): path for path in grain.rglob("*_test.py")}
    kept: dict[str, Outcomes] = {}
    if arguments.baseline and arguments.baseline.exists():
        kept = json.loads(arguments.baseline.read_text())
    exceptions = read_exceptions()
    unlisted = all_passed = all_fair = 0
    for group, names in ("fast", FAST), ("workers", WORKERS):
        asked = missing = inside = 0
        for name in names:
            if arguments.files and name not in arguments.files:
                continue
            if name not in tests:
                print(f"{name:28} is no test file of this Grain")
                continue
            if name not in kept:
                kept[name] = run_file(python, tests[name], "grain")
            count, lost = compare(name, kept[name], run_file(python, tests[name], "loaderx"))
            asked, missing = asked + count, missing + len(lost)
            print(f"{name:28} {count:5} cases of Grain's, {count - len(lost):5} passed by both")
            for case in lost:
                reason = next((r for p, r in exceptions.items() if fnmatch.fnmatch(case, p)), None)
                inside += "internals" in (reason or "").split(":")[0]
                if reason is None:
                    unlisted += 1
                    print(f"    not listed: {case}", flush=True)
        passed, fair = asked - missing, asked - inside  # nobody else can have Grain's internals
        all_passed, all_fair = all_passed + passed, all_fair + fair
        print(f"{group}: {passed} of {asked} cases, {inside} are about internals; ", end="")
        print(verdict(group, passed, fair), flush=True)
    print(verdict("all", all_passed, all_fair))
    if arguments.baseline:
        arguments.baseline.write_text(json.dumps(kept))
    print(f"{unlisted} cases are missing and not listed in exceptions.txt")
    return int(unlisted > 0)


if __name__ == "__main__":
    sys.exit(main())
