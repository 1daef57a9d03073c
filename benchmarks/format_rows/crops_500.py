"""Random resized crops of JPEGs of about 500 x 450 pixels, ImageNet's size."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))  # behind the packages that rows are named after
import _crops
from _crops import CONTENDERS, NEEDS, PARTIAL, PEERS

__all__ = ["BARS", "CONTENDERS", "NEEDS", "write"]


def write(folder: Path, quick: bool) -> None:
    _crops.write(folder, 128 if quick else 1024, 450, 500, spread=0.2, quality=95)


BARS = [
    *(("loaderx", peer, 1.0) for peer in (*PEERS, PARTIAL)),
    *(("loaderx, full decode", peer, 1.0) for peer in PEERS),
]
