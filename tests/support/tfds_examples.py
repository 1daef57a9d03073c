"""The records of tests/files/tfds: as they were given to TFDS, and as they must be read."""

from __future__ import annotations

import numpy as np

COUNTS = {"train": 10, "test": 4}


def example(i: int) -> dict:
    drawn = np.random.default_rng(i)
    n = i % 4
    height, width = 3 + i % 2, 4

    def pixels(*shape: int) -> np.ndarray:
        return drawn.integers(0, 256, shape, dtype=np.uint8)

    return {
        "image": pixels(4, 5, 3),
        "gray": pixels(height, width, 1),
        "alpha": pixels(2, 2, 4),
        "jpeg": pixels(8, 8, 3),
        "deep": drawn.integers(0, 2**16, (2, 3, 1), dtype=np.uint16),
        "depth": drawn.random((2, 3, 1), np.float32),
        "mask": pixels(2, 2, 1) % 2,
        "video": pixels(2 + i % 2, 2, 3, 3),
        "text": f"text {i} é" * n,
        "label": i % 3,
        "count": i - 5,
        "ratio": i / 7,
        "flag": i % 2 == 0,
        "byte": i * 20,
        "wide": 2**63 + i,
        "double": np.float64(i) / 3,
        "half": np.float16(i) / 4,
        "raw": f"raw {i}".encode(),
        "vector": drawn.random(3, np.float32),
        "matrix": drawn.integers(0, 256, (2, 3), dtype=np.uint8),
        "rows": drawn.integers(-9, 9, (n, 2)).astype(np.int32),
        "as_bytes": drawn.integers(0, 2**15, (2, 3), dtype=np.int16),
        "as_zlib": drawn.random((2, 2)),
        "open_bytes": drawn.random((n, 3), np.float32),
        "dynamic": drawn.integers(0, 99, (n, i % 3, 2)).astype(np.int32),
        "names": np.array([b"a%d" % i, b"b"], object),
        "box": np.array([0.1, 0.2, 0.5, 0.5 + i / 30], np.float32),
        "audio": drawn.integers(-999, 999, 5 + n),
        "tokens": list(range(i, i + n)),
        "pair": [i, -i],
        "words": [f"w{k}é" for k in range(n)],
        "flags": [bool(k % 2) for k in range(n)],
        "thumbnails": [pixels(2, 2, 3) for _ in range(n)],
        "blobs": [drawn.random(2, np.float32) for _ in range(n)],
        "objects": [
            {"box": np.array([0, 0, 1, (k + 1) / 9], np.float32), "kind": k % 2, "name": f"o{k}"}
            for k in range(n)
        ],
        "nested": {"inner": {"x": np.float32(i), "label": "u" if i % 2 else "v"}, "y": i},
        "ragged": [list(range(k)) for k in range(n)],
        "ragged_words": [[f"r{k}"] * k for k in range(n)],
        "deeper": [[list(range(j)) for j in range(k)] for k in range(n)],
        "steps": [{"reward": np.float32(k), "seen": pixels(2, 2, 3)} for k in range(n + 1)],
        "translation": {"de": f"hallo {i}", "en": f"hello {i}"},
        "maybe": None if i % 3 == 0 else np.int32(i),
    }


def expected(i: int) -> dict:
    """A record as loaderx reads it, but for the pixels of the JPEG."""
    given = example(i)
    given["text"] = f"text {i} é" * (i % 4)
    scalars = {
        "label": np.int64, "count": np.int32, "ratio": np.float32, "flag": np.bool_,
        "byte": np.uint8, "wide": np.uint64, "half": np.float16, "maybe": np.int32,
    }  # fmt: skip
    if given["maybe"] is None:
        given["maybe"] = np.iinfo(np.int32).min
    for name, kind in scalars.items():
        given[name] = kind(given[name])
    given["double"] = np.float64(np.float32(given["double"]))  # as which it is stored
    for name, kind in {"tokens": np.int64, "pair": np.int32, "flags": np.bool_}.items():
        given[name] = np.array(given[name], kind)
    given["words"] = np.array([*given["words"], None], object)[:-1]
    given["thumbnails"] = np.stack([*given["thumbnails"], np.zeros((2, 2, 3), np.uint8)])[:-1]
    given["blobs"] = np.stack([*given["blobs"], np.zeros(2, np.float32)])[:-1]
    objects = given["objects"]
    given["objects"] = {
        "box": np.array([one["box"] for one in objects], np.float32).reshape(-1, 4),
        "kind": np.array([one["kind"] for one in objects], np.int64),
        "name": np.array([*(one["name"] for one in objects), None], object)[:-1],
    }
    inner = given["nested"]["inner"]
    label = np.int64("uv".index(inner["label"]))
    given["nested"]["inner"] = {"label": label, "x": inner["x"]}  # sorted, as in the file
    given["nested"]["y"] = np.int64(given["nested"]["y"])
    given["ragged"] = [np.array(one, np.int32) for one in given["ragged"]]
    given["ragged_words"] = [np.array([*one, None], object)[:-1] for one in given["ragged_words"]]
    given["deeper"] = [[np.array(one, np.int64) for one in some] for some in given["deeper"]]
    given["steps"] = {
        name: np.stack([one[name] for one in given["steps"]]) for name in ("reward", "seen")
    }
    return given
