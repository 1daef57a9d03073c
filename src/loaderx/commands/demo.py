"""Train a small network, stop half-way, go on, and check that nothing was lost.

The network is of Flax, and the data are handwritten digits. It stops in the
middle of an epoch, starts again from what was saved, and is compared with a
run that never stopped. It takes less than a minute on a CPU and leaves nothing
behind.

examples:
  loaderx demo
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading

from loaderx.errors import MissingPackageError

NEEDS = "it needs jax, flax, optax and tqdm: pip install jax flax optax tqdm"


def add(command: argparse.ArgumentParser) -> None:
    """It has no options."""


def run(options: argparse.Namespace) -> bool:
    """Runs the demo; False if a batch or a weight came out different."""
    with CtrlC() as ctrl_c:
        try:
            from loaderx.demo.train import train
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("loaderx"):
                raise  # a bug of ours, not a missing package
            raise MissingPackageError(NEEDS) from error
        ctrl_c.check()
        problems = train(check=ctrl_c.check).problems()
    for problem in problems:
        sys.stderr.write(f"The demo failed: {problem}\n")
    return not problems


class CtrlC:
    """Remembers Ctrl-C, and raises KeyboardInterrupt where `check` is called.

    Elsewhere it may be lost in a callback of jax, or interrupt a compilation, after which jax may
    crash when Python ends.  A second Ctrl-C is raised at once nevertheless.
    """

    def __init__(self) -> None:
        self._pressed = False
        self._installed = False

    def __enter__(self) -> CtrlC:
        # Only in place of Python's default handler: the user has set any other on purpose.
        usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if usual and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._note)
            self._installed = True
        return self

    def _note(self, number: int, frame: object) -> None:
        self._pressed = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.write(2, b"\nstopping\n")  # not `print`, which the signal may have interrupted

    def check(self) -> None:
        if self._pressed:
            raise KeyboardInterrupt

    def __exit__(self, *exception: object) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
