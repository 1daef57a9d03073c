"""One case of a target of `fuzz.py` whose input is files."""

from __future__ import annotations

import random
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

Case = Callable[[random.Random, Path], str]


def run_case(seed: int, cases: Sequence[Case]) -> str:
    """Runs one of the cases in a folder of the current directory, and leaves nothing in it."""
    draw = random.Random(seed)
    place = Path(f"case{seed}")
    place.mkdir()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return draw.choice(cases)(draw, place)
    finally:
        shutil.rmtree(place)
