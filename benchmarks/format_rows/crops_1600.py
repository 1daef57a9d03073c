"""Random resized crops of JPEGs of 1600 x 1200 pixels, which are decoded at a fraction of that."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))  # behind the packages that rows are named after
import _crops
from _crops import CONTENDERS, NEEDS, PARTIAL, PEERS

__all__ = ["BARS", "CONTENDERS", "NEEDS", "write"]


def write(folder: Path, quick: bool) -> None:
    _crops.write(folder, 64 if quick else 256, 1200, 1600, spread=0.0, quality=85)


BARS = [
    *(("loaderx", peer, 1.8) for peer in PEERS),
    ("loaderx", PARTIAL, 1.0),
    *(("loaderx, full decode", peer, 1.0) for peer in PEERS),
]
