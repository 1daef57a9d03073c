"""``loaderx cache``: lists the entries of the cache folder, or removes them."""

from __future__ import annotations

import os
import sys
import time

from loaderx.sources.cache.entries import CacheEntry, cache_entries, remove_entry
from loaderx.sources.cache.folder import cache_folder
from loaderx.sources.cache.owners import ABANDONED_S

_DAY_S = 86_400.0


def cache(folder: str | None = None, older_than: float = 0.0, *, clear: bool = False) -> bool:
    """Prints the entries that were not used for ``older_than`` days, or removes them."""
    place = cache_folder(folder).folder
    assert place is not None
    now = time.time()
    chosen = [one for one in cache_entries(place) if now - one.used_s >= older_than * _DAY_S]
    if clear:
        # An unfinished entry is left alone for a day; after that its process must have died.
        chosen = [one for one in chosen if one.is_finished or now - one.used_s >= ABANDONED_S]
    if clear:
        found, chosen = chosen, [one for one in chosen if remove_entry(one)]
        if len(found) > len(chosen):
            _say(f"kept {len(found) - len(chosen):,} downloads that are in use")
    else:
        for entry in chosen:
            _say(_row(entry, (now - entry.used_s) / _DAY_S))
    total = sum(entry.nbytes for entry in chosen)
    told = f"{len(chosen):,} {'entry' if len(chosen) == 1 else 'entries'}, {total / 1e6:,.1f} MB"
    _say(f"removed {told} from {place}" if clear else f"{told} in {place}")
    return True


def _row(entry: CacheEntry, days: float) -> str:
    others = f" and {entry.files - 1:,} more" if entry.files > 1 else ""
    what = f"{entry.first}{others}" if entry.first else os.path.basename(entry.place)
    used = f"used {days:,.0f} days ago" if days >= 1 else "used today"
    return f"{entry.nbytes / 1e6:10,.1f} MB  {used:17}  {entry.kind:10}  {what}"


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
