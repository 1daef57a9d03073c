"""Writes tests/files/webdataset: python tests/files/make_webdataset.py (webdataset 1.0.2)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent / "webdataset"


def main() -> None:
    import webdataset  # not in the extra `dev`

    FOLDER.mkdir(exist_ok=True)
    pattern = str(FOLDER / "shard-%06d.tar")
    with webdataset.ShardWriter(pattern, maxcount=3, verbose=0, mtime=0) as writer:
        for n in range(5):
            writer.write(
                {
                    "__key__": f"sample{n:03}",
                    "txt": f"caption {n} ü",
                    "cls": n,
                    "json": {"id": n, "tags": ["a", "b"]},
                    "npy": np.arange(n + 2, dtype=np.float32),
                    "bin": bytes([n]) * 9,
                }
            )


if __name__ == "__main__":
    main()
