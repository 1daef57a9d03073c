"""Writes ``mds/``: MDS folders, with mosaicml-streaming 0.13.0.

pip install mosaicml-streaming pillow && python make_mds.py
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from PIL import Image
from streaming import MDSWriter

HERE = Path(__file__).parent / "mds"


def write(name, columns, samples, **options):
    with MDSWriter(out=str(HERE / name), columns=columns, **options) as writer:
        for sample in samples:
            writer.write(sample)


def image(number, mode="RGB"):
    channels = len(mode)
    pixels = (np.arange(6 * 5 * channels) * (number + 1) % 256).astype(np.uint8)
    return Image.fromarray(pixels.reshape(6, 5, channels).squeeze(), mode)


def main():
    shutil.rmtree(HERE, ignore_errors=True)
    fixed = {"image": "ndarray:uint8:4,3", "label": "int", "weight": "float32"}
    write(
        "fixed",
        fixed,
        [
            {"image": np.full((4, 3), n, np.uint8), "label": n - 3, "weight": np.float32(n / 2)}
            for n in range(11)
        ],
        size_limit=200,
    )
    mixed = {
        "text": "str", "raw": "bytes", "number": "int16", "any": "ndarray",
        "floats": "ndarray:float64", "digits": "str_int", "real": "str_float", "tree": "json",
        "png": "png", "pil": "pil",
        "pngs": "list[png]",
    }  # fmt: skip
    samples = [
        {
            "text": "ö" * n, "raw": bytes(range(n)), "number": np.int16(-n),
            "any": np.arange(n + 1, dtype=[np.uint8, np.int32, np.float16][n % 3]).reshape(1, -1),
            "floats": np.arange(300 * (n % 2) + 2) / 4, "digits": 10**30 + n, "real": n / 3,
            "tree": {"a": [n]}, "png": image(n), "pil": image(n, "L"),
            "pngs": [image(k) for k in range(n % 3)],
        }
        for n in range(7)
    ]  # fmt: skip
    write("mixed", mixed, samples)
    for split in ("train", "val"):
        data = [{"x": n, "text": f"{split} {n}"} for n in range(5)]
        write(f"splits/{split}", {"x": "int", "text": "str"}, data)
    zipped = [{"x": n} for n in range(5)]
    write("zstd", {"x": "int"}, zipped, compression="zstd", hashes=["sha1"])
    write("gz", {"x": "int"}, zipped, compression="gz")
    write("brotli", {"x": "int"}, zipped, compression="br")
    write("pickles", {"x": "int", "bad": "pkl"}, [{"x": n, "bad": {n}} for n in range(5)])


if __name__ == "__main__":
    main()
