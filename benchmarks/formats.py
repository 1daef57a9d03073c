"""File formats: loaderx beside the libraries that own them, in records per CPU second.

    python benchmarks/formats.py [--quick] [--only FORMAT ...] [--rounds N]

Each file in `format_rows/` writes its data once and has a function for each contender, which yields
the number of records of each batch.  Every measurement is a process of its own; rounds go through
all contenders of a row in turn.  CPU seconds are those of the process and its children, from the
second batch on; the first batch has a column of its own.  What a contender needs is installed into
`.venv-bench/formats` by name.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import monotonic
from types import ModuleType

HERE = Path(__file__).parent
ROOT = HERE.parent
SECONDS, QUICK_SECONDS = 3.0, 0.3
TIMEOUT_S = 600


def row_files(only: list[str] | None) -> list[Path]:
    found = sorted((HERE / "format_rows").glob("[a-z]*.py"))
    return [file for file in found if only is None or file.stem in only]


def load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cpu_seconds() -> float:
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def measure(file: Path, contender: str, folder: Path, seconds: float) -> dict[str, float]:
    """Runs in a process of its own: CPU to the first batch, and records per CPU second after it."""
    module = load(file)
    begun = cpu_seconds()
    batches = iter(module.CONTENDERS[contender](folder))
    next(batches)
    first = cpu_seconds()
    records, start = 0, monotonic()
    for count in batches:
        records += count
        if monotonic() > start + seconds:
            break
    used, passed = cpu_seconds() - first, monotonic() - start
    return {
        "first_s": first - begun,
        "records": records,
        "per_cpu_s": records / max(used, 1e-9),
        "per_s": records / max(passed, 1e-9),
    }


def python_with(needs: list[str], envs: Path) -> Path:
    """An interpreter that has these packages; they are installed if they are not there."""
    folder = envs / "formats"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", "-e", str(ROOT)], check=True)
    done = folder / "installed.json"
    have = set(json.loads(done.read_text())) if done.exists() else set()
    if missing := sorted(set(needs) - have):
        print(f"installing {', '.join(missing)}", flush=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *missing], check=True)
        done.write_text(json.dumps(sorted(have | set(missing))))
    return python


def run_child(python: Path, file: Path, contender: str, folder: Path, seconds: float) -> dict:
    command = [str(python), __file__, "--child", str(file), contender, str(folder), str(seconds)]
    env = {**os.environ, "LOADERX_CACHE": str(folder / "cache"), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, env=env, check=False
    )
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "failed"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def run_row(file: Path, options: argparse.Namespace) -> dict[str, dict]:
    module = load(file)
    python = python_with(list(module.NEEDS), Path(options.envs).resolve())
    folder = Path(options.data).resolve() / ("quick" if options.quick else "full") / file.stem
    if not (folder / "written").exists():
        folder.mkdir(parents=True, exist_ok=True)
        size = "quick" if options.quick else "full"
        command = [str(python), __file__, "--write", str(file), str(folder), size]
        subprocess.run(command, check=True)
        (folder / "written").touch()
    seconds = QUICK_SECONDS if options.quick else SECONDS
    found: dict[str, list[dict]] = {name: [] for name in module.CONTENDERS}
    for _ in range(options.rounds):
        for name, results in found.items():
            results.append(run_child(python, file, name, folder, seconds))
    return {name: summary(results) for name, results in found.items()}


def summary(results: list[dict]) -> dict:
    errors = [one["error"] for one in results if "error" in one]
    if errors:
        return {"error": errors[0]}
    return {
        "per_cpu_s": median(one["per_cpu_s"] for one in results),
        "per_s": median(one["per_s"] for one in results),
        "first_s": median(one["first_s"] for one in results),
    }


def report(file: Path, found: dict[str, dict]) -> bool:
    """Prints a row and its bars; False if one of them is missed."""
    print(f"\n## {file.stem}\n")
    print("| contender | records / CPU s | records / s | CPU s to the first batch |")
    print("|---|--:|--:|--:|")
    for name, one in found.items():
        if "error" in one:
            print(f"| {name} | failed: {one['error'][:150]} | | |")
        else:
            print(
                f"| {name} | {one['per_cpu_s']:,.0f} | {one['per_s']:,.0f} | {one['first_s']:.2f} |"
            )
    passed = True
    for ours, theirs, least in load(file).BARS:
        if "error" in found[ours] or "error" in found[theirs]:
            print(f"- {ours} against {theirs}: not measured (bar {least})")
            passed = False
            continue
        ratio = found[ours]["per_cpu_s"] / found[theirs]["per_cpu_s"]
        passed &= ratio >= least
        word = "" if ratio >= least else "  **missed**"
        print(f"- {ours} against {theirs}: {ratio:.2f} (bar {least}){word}")
    sys.stdout.flush()
    return passed


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        file, contender, folder, seconds = sys.argv[2:]
        print(json.dumps(measure(Path(file), contender, Path(folder), float(seconds))))
        return 0
    if sys.argv[1:2] == ["--write"]:
        file, folder, size = sys.argv[2:]
        load(Path(file)).write(Path(folder), size == "quick")
        return 0
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", default=ROOT / ".bench-data" / "formats")
    parser.add_argument("--envs", default=ROOT / ".venv-bench")
    parser.add_argument("--json", help="writes the figures into this file")
    options = parser.parse_args()
    results = {}
    passed = True
    for file in row_files(options.only):
        results[file.stem] = run_row(file, options)
        passed &= report(file, results[file.stem])
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
