"""Run a training program, and say whether it waits for its data, and why.

The program runs as ever, but batches are repeated in every other block of
steps: the difference is what its data cost. It is ended after some hundred
steps. Do not keep what it has saved: a model that was trained on repeated
batches is worth nothing. What follows the script are its own arguments. With
--try, the loader is changed as advised, and measured again.

examples:
  loaderx doctor train.py --epochs 3
  loaderx doctor --try train.py
  loaderx doctor --json train.py > doctor.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import runpy
import sys
import threading
import traceback
from collections.abc import Iterator

from loaderx.commands.head import at_least_one
from loaderx.commands.terminal import say
from loaderx.errors import FileError, LoaderxError
from loaderx.loader.doctor.diagnosis import ROUNDS, Diagnosis
from loaderx.loader.doctor.replay import WARM_STEPS, Examination, Examined


def add(command: argparse.ArgumentParser) -> None:
    command.add_argument("script", help="the program, a Python file")
    own = command.add_argument("arguments", nargs=argparse.REMAINDER, help="its own arguments")
    own.required = False  # else an error without a script names them, too
    command.add_argument(
        "--steps", type=at_least_one, metavar="N", help="steps to measure, by default some seconds"
    )
    command.add_argument(
        "--try", action="store_true", dest="tries", help="make the first change that it advises"
    )
    command.add_argument("--json", action="store_true", help="the result as one JSON object")


def run(options: argparse.Namespace) -> bool:
    """Runs the script; False if it failed, or if too few steps were seen."""
    if not os.path.isfile(options.script):
        raise FileError(f"there is no file {options.script}.")
    examination = Examination(options.steps, tries=options.tries)
    threads = threading.enumerate()
    with _to_stderr() if options.json else contextlib.nullcontext(), examination.running():
        has_failed = _run(options.script, options.arguments)
    if examination.refusal:
        raise LoaderxError(examination.refusal)
    found = examination.diagnosis()
    if options.json:
        say(json.dumps(found.as_dict()))
    else:
        _print(found, examination)
    is_ok = not has_failed and found.verdict != "unknown"
    if not all(one.daemon or one in threads for one in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(not is_ok)  # else Python would wait for threads that the script has left
    return is_ok


@contextlib.contextmanager
def _to_stderr() -> Iterator[None]:
    """What the script prints must not be among the JSON, nor what its children print."""
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)


def _run(script: str, arguments: list[str]) -> bool:
    """Runs a script as `python` would.  True if it ended with an error."""
    folder = os.path.dirname(os.path.abspath(script))
    argv, path = sys.argv, sys.path
    sys.argv, sys.path = [script, *arguments], [folder, *path]
    try:
        runpy.run_path(script, run_name="__main__")
    except Examined:
        return False
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            sys.stderr.write(f"{ended.code}\n")
        return ended.code not in (None, 0)
    except Exception:
        traceback.print_exc()
        return True
    finally:
        sys.argv, sys.path = argv, path
    return False


def _print(found: Diagnosis, examination: Examination) -> None:
    say(f"\n{found}")
    if found.verdict == "unknown":
        say(
            f"The program ended before {ROUNDS} pairs of blocks were measured "
            f"({len(examination.replayed)} were). It takes {WARM_STEPS} steps of one loader to "
            "begin, and some hundred to measure; --steps 48 takes fewer."
        )
