"""The command line: ``loaderx demo``, ``info``, ``verify``, ``convert`` and ``cache``."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Sequence

from loaderx.installed import problem as installation_problem

NEEDS = "loaderx demo needs jax, flax, optax and tqdm: pip install jax flax optax tqdm"

_CACHE_HELP = "the folder for indexes and copies, by default $LOADERX_CACHE or ~/.cache/loaderx"

OK, FAILED, UNUSABLE, INTERRUPTED = 0, 1, 2, 130  # 130 is 128 + SIGINT, as shells have it


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; ``--help`` and ``--version`` raise SystemExit."""
    broken = installation_problem()
    if broken is not None:
        print(broken, file=sys.stderr)
        return UNUSABLE
    parser = _parser()
    options = parser.parse_args(argv)
    if options.command is None:
        parser.print_help()
        return OK
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # not every terminal can show a µ
    try:
        if options.command != "demo":
            return _files(options)
        with CtrlC() as ctrl_c:
            return _demo(ctrl_c)
    except KeyboardInterrupt:
        if options.command == "convert":
            print("\nstopped: run the same command to resume", file=sys.stderr)
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    from loaderx import __version__  # late: the installation is checked first

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
    for name, does in (
        ("info", "show the format, splits, records and columns of files"),
        ("verify", "read and check every record of files, and list the bad ones"),
    ):
        command = commands.add_parser(name, help=does, description=f"{does.capitalize()}.")
        command.add_argument("path", help="a file, a folder, or a pattern in quotes")
        command.add_argument("--format", help="its name, if the files do not show it")
        command.add_argument("--cache", help=_CACHE_HELP)
        if name == "verify":
            command.add_argument("--most", type=int, default=100, help="bad records to list")
    _add_convert(commands)
    does = "list what loaderx keeps of files that it has opened, or remove it"
    command = commands.add_parser("cache", help=does, description=f"{does.capitalize()}.")
    command.add_argument("--cache", help=_CACHE_HELP)
    command.add_argument("--clear", action="store_true", help="remove what would be listed")
    command.add_argument(
        "--older-than", type=_days, default=0.0, metavar="DAYS", help="only entries unused so long"
    )
    return parser


def _add_convert(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    does = "save the records of files in the native layout, which is read fastest"
    command = commands.add_parser(
        "convert",
        help=does,
        description=f"{does.capitalize()}. If it is stopped, run the same command to resume.",
    )
    command.add_argument("path", metavar="SRC", help="a file, a folder, or a pattern in quotes")
    command.add_argument("target", metavar="DST", help="a folder that is new or empty, or its URL")
    command.add_argument("--split", help="such as train, or train[:80%%]")
    command.add_argument("--columns", type=_names, help="the columns to keep: a,b,c")
    command.add_argument("--format", help="its name, if the files do not show it")
    command.add_argument("--decode", action="store_true", help="keep the pixels of images")
    command.add_argument("--workers", type=int, metavar="N", help="how many to use at most")
    command.add_argument(
        "--engine",
        choices=["auto", "inline", "threads", "processes", "ray"],
        default="auto",
        help="what runs them; ray uses a cluster whose machines all reach DST",
    )
    command.add_argument(
        "--shard",
        type=_shard,
        metavar="I/N",
        help="save only a part: run the command N times, with 0/N, 1/N, ..., on any machines",
    )
    command.add_argument("--cache", help=_CACHE_HELP)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if index.isdecimal() and count.isdecimal() and int(index) < int(count):
        return int(index), int(count)
    raise argparse.ArgumentTypeError(f"must be one of 0/N to (N - 1)/N, such as 0/8, got {text!r}")


def _days(text: str) -> float:
    with contextlib.suppress(ValueError):
        if float(text) >= 0:
            return float(text)
    raise argparse.ArgumentTypeError(f"must be a number of days, got {text!r}")


def _files(options: argparse.Namespace) -> int:
    from loaderx.commands.cache import cache
    from loaderx.commands.info import info
    from loaderx.commands.verify import verify
    from loaderx.commands.words import in_options
    from loaderx.errors import LoaderxError

    try:
        if options.command == "cache":
            is_good = cache(options.cache, options.older_than, clear=options.clear)
        elif options.command == "convert":
            is_good = _convert(options)
        elif options.command == "info":
            is_good = info(options.path, options.format, options.cache)
        else:
            is_good = verify(options.path, options.format, options.cache, options.most)
    except LoaderxError as error:
        text = in_options(str(error), vars(options))
        print(f"loaderx {options.command}: {text}", file=sys.stderr)
        return UNUSABLE
    return OK if is_good else FAILED


def _convert(options: argparse.Namespace) -> bool:
    from loaderx.commands.convert import convert  # late: the other commands need no engines

    return convert(
        options.path,
        options.target,
        split=options.split,
        columns=options.columns,
        format=options.format,
        cache=options.cache,
        decode=options.decode,
        engine=options.engine,
        workers=options.workers,
        shard=options.shard,
    )


def _demo(ctrl_c: CtrlC) -> int:
    try:
        from loaderx.demo.train import train
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("loaderx"):
            raise  # a bug of ours, not a missing package
        print(NEEDS, file=sys.stderr)
        return UNUSABLE
    ctrl_c.check()
    problems = train(check=ctrl_c.check).problems()
    for problem in problems:
        print(f"The demo failed: {problem}", file=sys.stderr)
    return FAILED if problems else OK


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
