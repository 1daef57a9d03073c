"""The command line: ``loaderx demo`` and ``loaderx --version``."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence

from loaderx import __version__

NEEDS = "loaderx demo needs jax, flax, optax and tqdm: pip install 'loaderx[demo]'"

OK, FAILED, UNUSABLE, INTERRUPTED = 0, 1, 2, 130  # 130 is 128 + SIGINT, as shells have it


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; ``--help`` and ``--version`` raise SystemExit."""
    parser = _parser()
    command = parser.parse_args(argv).command
    if command is None:
        parser.print_help()
        return OK
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # not every terminal can show a µ
    try:
        return _demo()
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="loaderx", description="A data loader for JAX and Flax.")
    parser.add_argument("--version", action="version", version=f"loaderx {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command")
    commands.add_parser(
        "demo",
        help="train a small network, stop half-way, go on, and check that nothing was lost",
        description="Trains a small Flax network on handwritten digits, stops in the middle of an "
        "epoch, starts again from what was saved, and compares with a run that never stopped. "
        "Takes less than a minute on a CPU and leaves nothing behind.",
    )
    return parser


def _demo() -> int:
    try:
        from loaderx.demo.train import train
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("loaderx"):
            raise  # a bug of ours, not a missing package
        print(NEEDS, file=sys.stderr)
        return UNUSABLE
    problems = train().problems()
    for problem in problems:
        print(f"The demo failed: {problem}", file=sys.stderr)
    return FAILED if problems else OK
