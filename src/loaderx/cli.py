"""The command line.  Each command is a module of `loaderx.commands`, named here in `COMMANDS`.

The docstring of such a module is its ``--help``, examples included.  ``add(parser)`` adds its
options, and ``run(options)`` returns True, or False if the command found something wrong (the exit
code is then 1).  A `LoaderxError` or `OSError` becomes one line, and exit code 2.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module

from loaderx.installed import problem as installation_problem

COMMANDS = ("cache", "convert", "demo", "doctor", "env", "head", "info", "replay", "verify", "view")

OK, FAILED, UNUSABLE, INTERRUPTED = 0, 1, 2, 130  # 130 is 128 + SIGINT, as shells have it
CLOSED = 141  # 128 + SIGPIPE: the reader of a pipe has ended

_DOCS = "docs/command_line.md shows every command with its output."


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; ``--help`` and ``--version`` raise SystemExit."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed, as by `>&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    broken = installation_problem()
    if broken is not None:
        print(broken, file=sys.stderr)
        return UNUSABLE
    try:
        parser = command_parser()
        options = parser.parse_args(argv)
        if options.command is None:
            parser.print_help()
            return OK
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # not every terminal can show a µ
        code = _run(options)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # as of `loaderx head ... | head -1`
        with open(os.devnull, "w") as nowhere:  # else Python complains when it ends
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return CLOSED


def command_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    from loaderx import __version__  # late: the installation is checked first

    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="loaderx",
        description="A data loader for JAX and Flax.",
        epilog=f"loaderx COMMAND --help has examples. {_DOCS}",
    )
    parser.add_argument("--version", action="version", version=f"loaderx {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command")
    for name in COMMANDS:
        module = import_module(f"loaderx.commands.{name}")
        about = str(module.__doc__).partition("\n")[0]
        command = commands.add_parser(
            name,
            help=about[0].lower() + about[1:-1],
            description=module.__doc__,
            formatter_class=raw,
        )
        module.add(command)
        command.set_defaults(run=module.run)
    return parser


def _run(options: argparse.Namespace) -> int:
    from loaderx.commands.words import in_options
    from loaderx.display.values import plain_text
    from loaderx.errors import LoaderxError

    def in_words(text: object) -> str:
        return f"loaderx {options.command}: {in_options(str(text), vars(options))}"

    usual = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: f"{in_words(message)}\n"
    try:
        return OK if options.run(options) else FAILED
    except BrokenPipeError:
        raise
    except (LoaderxError, OSError) as error:
        print(plain_text(" ".join(in_words(error).splitlines())), file=sys.stderr)
        return UNUSABLE
    finally:
        warnings.formatwarning = usual
