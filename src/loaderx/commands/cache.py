"""List what loaderx keeps of files that it has opened, or remove it.

Indexes, copies and downloads are made again when they are needed. The largest
are listed last. With --clear, downloads in use stay; to see what it would
remove, leave it out.

examples:
  loaderx cache
  loaderx cache --older-than 30
  loaderx cache --older-than 30 --clear
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time

from loaderx.commands.opening import CACHE_HELP
from loaderx.commands.terminal import cut, faint, say, terminal_width
from loaderx.display.values import plain_text, size_text
from loaderx.errors import FileError
from loaderx.sources.cache.entries import CacheEntry, cache_entries, remove_entry
from loaderx.sources.cache.folder import cache_folder
from loaderx.sources.cache.owners import ABANDONED_S

_DAY_S = 86_400.0


def add(command: argparse.ArgumentParser) -> None:
    command.add_argument("--cache", metavar="DIR", help=CACHE_HELP)
    command.add_argument("--clear", action="store_true", help="remove what would be listed")
    command.add_argument(
        "--older-than", type=_days, default=0.0, metavar="DAYS", help="only entries unused so long"
    )
    command.add_argument("--json", action="store_true", help="all of it as one JSON object")


def _days(text: str) -> float:
    with contextlib.suppress(ValueError):
        if float(text) >= 0:
            return float(text)
    raise argparse.ArgumentTypeError(f"must be a number of days, got {text!r}")


def run(options: argparse.Namespace) -> bool:
    """Lists the entries that were not used for some days, or removes them."""
    place = cache_folder(options.cache).folder
    assert place is not None
    if os.path.isfile(place):
        raise FileError(f"the cache must be a folder, and {place} is a file.")
    now, least = time.time(), options.older_than * _DAY_S
    chosen = [one for one in cache_entries(place) if now - one.used_s >= least]
    kept = 0
    if options.clear:
        # An unfinished entry is left alone for a day; after that its process must have died.
        chosen = [one for one in chosen if one.is_finished or now - one.used_s >= ABANDONED_S]
        found, chosen = chosen, [one for one in chosen if remove_entry(one)]
        kept = len(found) - len(chosen)
    chosen.sort(key=lambda one: one.nbytes)
    total = sum(entry.nbytes for entry in chosen)
    if options.json:
        listed = [one._asdict() for one in chosen]
        facts = {"folder": place, "bytes": total, "kept": kept, "removed": options.clear}
        say(json.dumps({**facts, "entries": listed}, indent=2))
        return True
    if kept:
        say(f"kept {kept:,} downloads that are in use")
    if not options.clear:
        for entry in chosen:
            say(cut(_row(entry, (now - entry.used_s) / _DAY_S), terminal_width()))
    told = f"{len(chosen):,} {'entry' if len(chosen) == 1 else 'entries'}, {size_text(total)}"
    say(f"removed {told} from {place}" if options.clear else f"{told} in {place}")
    if chosen and not options.clear:
        say(faint("remove them: the same command with --clear"))
    return True


def _row(entry: CacheEntry, days: float) -> str:
    others = f" and {entry.files - 1:,} more" if entry.files > 1 else ""
    what = f"{entry.first}{others}" if entry.first else os.path.basename(entry.place)
    used = f"used {days:,.0f} days ago" if days >= 1 else "used today"
    return f"{size_text(entry.nbytes):>10}  {used:17}  {entry.kind:10}  {plain_text(what)}"
