"""Show versions, devices, memory and settings, for bug reports.

Nothing is started unless --devices is given: JAX then starts its accelerators,
which fails while another process uses them. Values of variables whose names
look like secrets are left out.

examples:
  loaderx env
  loaderx env --devices --json > env.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
from collections.abc import Iterator
from importlib import metadata

from loaderx import __version__
from loaderx.commands.terminal import bold, say
from loaderx.display.values import plain_text, size_text
from loaderx.errors import MissingPackageError
from loaderx.free_memory import free_memory
from loaderx.sources.cache.entries import cache_entries
from loaderx.sources.cache.folder import cache_folder
from loaderx.sources.remote.urls import without_secrets

_DISTRIBUTION = "loaderx-jax"
_FOR_DEVELOPERS = {"bench", "demo", "dev", "owners"}  # extras that are not listed
_EXTRA = re.compile(r"^([\w.-]+).*\bextra == ['\"](\w+)['\"]")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)


def add(command: argparse.ArgumentParser) -> None:
    command.add_argument("--devices", action="store_true", help="start JAX, and list its devices")
    command.add_argument("--json", action="store_true", help="all of it as one JSON object")


def run(options: argparse.Namespace) -> bool:
    """Shows the facts."""
    facts = dict(_facts(devices=options.devices))
    if options.json:
        say(json.dumps(facts, indent=2))
        return True
    width = max(map(len, facts))
    for name, value in facts.items():
        values = value if isinstance(value, list) else [value]
        for title, text in zip([name, *[""] * len(values)], values or ["none"], strict=False):
            say(f"{bold(f'{title:{width}}')}  {plain_text(text)}")
    return True


def _facts(*, devices: bool) -> Iterator[tuple[str, str | list[str]]]:
    yield "loaderx", __version__
    yield "python", f"{platform.python_version()} ({platform.python_implementation()})"
    for name in ("numpy", "jax", "jaxlib", "flax"):
        yield name, _version(name)
    yield "devices", _devices() if devices else "not asked for (--devices starts JAX)"
    yield "extras", list(_extras())
    yield "platform", platform.platform()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield "cores", f"{usable} of {os.cpu_count()}"
    free = free_memory()
    yield "free memory", "unknown" if free is None else size_text(free)
    yield "shared memory", _space("/dev/shm")
    folder = cache_folder(None).folder
    assert folder is not None
    kept = sum(one.nbytes for one in cache_entries(folder))
    there = folder
    while not os.path.isdir(there):  # it is made when it is first needed
        there = os.path.dirname(there)
    yield "cache", f"{folder}: {size_text(kept)} used, {_space(there)}"
    yield (
        "variables",
        [
            f"{name}={'(set)' if _SECRET.search(name) else without_secrets(value)}"
            for name, value in sorted(os.environ.items())
            if name.startswith(("LOADERX_", "JAX_", "XLA_"))
        ],
    )


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _extras() -> Iterator[str]:
    """The packages of each extra, as the metadata of this installation names them."""
    try:
        needed = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # run from a folder
        needed = []
    extras: dict[str, list[str]] = {}
    for name, extra in (found.groups() for found in map(_EXTRA.match, needed) if found):
        if extra not in _FOR_DEVELOPERS:
            extras.setdefault(extra, []).append(f"{name} {_version(name)}")
    for extra, packages in sorted(extras.items()):
        yield f"{extra}: {', '.join(packages)}"


def _space(folder: str) -> str:
    try:
        found = shutil.disk_usage(folder)
    except OSError:
        return "none"
    return f"{size_text(found.free)} of {size_text(found.total)} free"


def _devices() -> list[str]:
    try:
        from loaderx.jax.devices import device_names
    except MissingPackageError as error:
        return [str(error)]
    try:
        return device_names()
    except RuntimeError as error:  # JAX found none, or another process has them
        return [f"{type(error).__name__}: {error}"]
