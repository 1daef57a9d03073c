"""An environment for each peer, made from PyPI once and kept.

A folder holds one virtual environment per peer, with a stamp of what was asked for.  Where the
list changes, or the interpreter, the environment is made anew.  `uv` is used where it is found,
since it is faster; `venv` and `pip` do as well.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

INSTALL_S = 1800
OWN_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
TELLING = re.compile("error|because|no solution|not found", re.IGNORECASE)


class NotInstalledError(Exception):
    """Why an environment could not be made."""


def name_of(contender: Any) -> str:
    short = contender.__name__.rpartition(".")[2].removesuffix("_")
    return str(getattr(contender, "ENVIRONMENT", short))


def interpreter(contender: Any, folder: Path) -> Path:
    """The Python that runs this contender; its environment is made if need be."""
    if contender.REQUIREMENTS is None:
        return Path(sys.executable)
    version = getattr(contender, "PYTHON", OWN_VERSION)
    return environment(name_of(contender), contender.REQUIREMENTS, folder, version)


def environment(
    name: str, requirements: list[str], folder: Path, version: str = OWN_VERSION
) -> Path:
    """The interpreter of an environment that has these packages."""
    place = folder / name
    python = place / "bin" / "python"
    stamp = place / "stamp.json"
    wanted = {
        "python": [int(part) for part in version.split(".")],
        "requirements": sorted(requirements),
    }
    if stamp.exists() and json.loads(stamp.read_text()) == wanted:
        return python
    print(f"installing {', '.join(requirements)} ...", file=sys.stderr, flush=True)
    shutil.rmtree(place, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    uv = shutil.which("uv")
    base = python_of(version)
    if uv:
        call([base, "-m", "venv", "--without-pip", str(place)])
        call([uv, "pip", "install", "-q", "--python", str(python), *requirements])
    else:
        call([base, "-m", "venv", str(place)])
        call([str(python), "-m", "pip", "install", "-q", *requirements])
    stamp.write_text(json.dumps(wanted))
    return python


def python_of(version: str) -> str:
    """An interpreter of this version: ours, or one from the path."""
    if version == OWN_VERSION:
        return sys.executable
    path = shutil.which(f"python{version}")
    if (
        path is None
        or subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode
    ):
        raise NotInstalledError(f"it needs python{version} on the path")
    return path


def call(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotInstalledError(f"not installed within {INSTALL_S} s") from None
    if done.returncode:
        telling = [line for line in done.stderr.splitlines() if TELLING.search(line)]
        said = without_places(" ".join(" ".join(telling[-3:]).split()))
        raise NotInstalledError(said or f"exit code {done.returncode}")


def last_line(text: str) -> str:
    """The last line of an error that says something, without addresses and paths."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|error)\b", line)]
    return without_places([*lines, *errors][-1]) if lines else ""


def without_places(text: str) -> str:
    """No machine's paths or addresses get into results."""
    text = re.sub(r"\w+://\S+", "(address)", text)
    text = re.sub(r"(?<![\w/])(?:/[^\s/'\":,]+)+/([^\s/'\":,]+)", r"\1", text)
    return text[:300]
