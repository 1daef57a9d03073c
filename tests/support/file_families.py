"""Files of every family of formats, with the same records in them.

`WRITERS` write one shard that has the records with the given numbers.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from native_files import fixed, kinds_of, runs
from native_files import write as write_native
from tf_files import example, write_tfrecord


def vectors(numbers: Sequence[int]) -> np.ndarray:
    return np.array([[n, n + 0.5, -n] for n in numbers], np.float32).reshape(-1, 3)


def texts(numbers: Sequence[int]) -> list[str]:
    return [f"text é {n}" for n in numbers]


def write_npz(path: Path, numbers: Sequence[int]) -> None:
    np.savez(path.with_suffix(".npz"), x=np.array(numbers), v=vectors(numbers))


def write_hdf5(path: Path, numbers: Sequence[int]) -> None:
    with h5py.File(path.with_suffix(".h5"), "w") as file:
        file["x"], file["v"] = np.array(numbers), vectors(numbers)


def write_safetensors(path: Path, numbers: Sequence[int]) -> None:
    x, v = np.array(numbers, "<i8").tobytes(), vectors(numbers).tobytes()
    count, end = len(numbers), len(x)
    header = {
        "x": {"dtype": "I64", "shape": [count], "data_offsets": [0, end]},
        "v": {"dtype": "F32", "shape": [count, 3], "data_offsets": [end, end + len(v)]},
    }
    text = json.dumps(header).encode()
    whole = len(text).to_bytes(8, "little") + text + x + v
    path.with_suffix(".safetensors").write_bytes(whole)


def write_folder(path: Path, numbers: Sequence[int]) -> None:
    """The native layout."""
    columns = {"x": fixed(list(numbers)), "v": fixed(vectors(numbers)), "t": runs(texts(numbers))}
    write_native(path, kinds_of(columns), columns)


def write_text(path: Path, numbers: Sequence[int]) -> None:
    path.with_suffix(".txt").write_text("".join(f"{one}\n" for one in texts(numbers)))


def write_jsonl(path: Path, numbers: Sequence[int]) -> None:
    rows = zip(numbers, texts(numbers), vectors(numbers).tolist())
    lines = (json.dumps({"x": x, "t": t, "v": v}) + "\n" for x, t, v in rows)
    path.with_suffix(".jsonl").write_text("".join(lines))


def write_csv(path: Path, numbers: Sequence[int]) -> None:
    rows = "".join(f"{n},{n / 2},{text}\n" for n, text in zip(numbers, texts(numbers)))
    path.with_suffix(".csv").write_text("x,half,t\n" + rows)


def write_tar(path: Path, numbers: Sequence[int]) -> None:
    with tarfile.open(path.with_suffix(".tar"), "w") as archive:
        for n, text in zip(numbers, texts(numbers)):
            for name, data in ((f"{n:04}.txt", text.encode()), (f"{n:04}.cls", b"%d" % n)):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))


def write_tf(path: Path, numbers: Sequence[int]) -> None:
    rows = zip(numbers, texts(numbers), vectors(numbers))
    records = [example({"x": [x], "t": [t], "v": v}) for x, t, v in rows]
    write_tfrecord(path.with_suffix(".tfrecord"), records)


def table(numbers: Sequence[int]) -> pa.Table:
    vector = pa.array(list(vectors(numbers)), pa.list_(pa.float32(), 3))
    return pa.table({"x": np.array(numbers), "t": texts(numbers), "v": vector})


def write_arrow(path: Path, numbers: Sequence[int]) -> None:
    made = table(numbers)
    with pa.ipc.new_stream(path.with_suffix(".arrow"), made.schema) as writer:
        writer.write_table(made, max_chunksize=3)


def write_parquet(path: Path, numbers: Sequence[int]) -> None:
    pq.write_table(table(numbers), path.with_suffix(".parquet"), row_group_size=4)


def write_images(path: Path, numbers: Sequence[int]) -> None:
    """A folder of images: a class."""
    path.mkdir()
    for n in numbers:
        Image.fromarray(np.full((3, 4, 3), n, np.uint8)).save(path / f"{n:04}.png")


WRITERS: dict[str, Callable[[Path, Sequence[int]], None]] = {
    "arrow": write_arrow,
    "csv": write_csv,
    "hdf5": write_hdf5,
    "images": write_images,
    "jsonl": write_jsonl,
    "native": write_folder,
    "npz": write_npz,
    "parquet": write_parquet,
    "safetensors": write_safetensors,
    "tar": write_tar,
    "text": write_text,
    "tfrecord": write_tf,
}
