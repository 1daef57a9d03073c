"""Run a training program, and say whether it waits for its data, and why.

The program runs as ever, but batches are repeated in every other block of
steps: the difference is what its data cost. It is ended after some hundred
steps, and no states of its loader can be saved. What follows the script are
its own arguments. With --try, the loader is changed as advised, and measured
again.

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
import traceback

from loaderx.commands.head import at_least_one
from loaderx.commands.terminal import say
from loaderx.errors import FileError
from loaderx.loader.doctor.diagnosis import Diagnosis
from loaderx.loader.doctor.replay import ROUNDS, WARM_STEPS, Examination, Examined


def add(command: argparse.ArgumentParser) -> None:
    command.add_argument("script", help="the program, a Python file")
    command.add_argument("arguments", nargs=argparse.REMAINDER, help="its own arguments")
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
    # With --json, what the script prints must not be among the JSON.
    hidden = contextlib.redirect_stdout(sys.stderr) if options.json else contextlib.nullcontext()
    with hidden, examination.running():
        has_failed = _run(options.script, options.arguments)
    found = examination.diagnosis()
    if options.json:
        say(json.dumps(found.as_dict()))
    else:
        _print(found, examination)
    return not has_failed and found.verdict != "unknown"


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
        return ended.code not in (None, 0)
    except Exception:
        traceback.print_exc()
        return True
    finally:
        sys.argv, sys.path = argv, path
    return False


def _print(found: Diagnosis, examination: Examination) -> None:
    say("")
    if found.verdict != "unknown":
        say(str(found))
        return
    say(
        f"The program ended before {ROUNDS} pairs of blocks were measured ({len(examination.real)} "
        f"were). It takes {WARM_STEPS} steps of one loader to begin, and some hundred to measure; "
        "--steps 48 takes fewer."
    )
