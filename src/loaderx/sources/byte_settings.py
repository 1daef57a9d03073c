"""Numbers of bytes that environment variables set."""

from __future__ import annotations

import os

from loaderx.errors import ArgumentError


def bytes_setting(name: str, default: int, least: int = 1) -> int:
    """The bytes that an environment variable says; the default if it is not set."""
    given = os.environ.get(name, "")
    if not given:
        return default
    try:
        found = int(given)
    except ValueError:
        found = -1
    if found < least:
        raise ArgumentError(
            f"{name} is {given!r}, and must be a number of bytes, at least {least}: {default} is "
            f"{default / 2**30:g} GiB, the default."
        )
    return found
