"""Many files, and tables of many columns."""

from __future__ import annotations

import csv
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from suite.file_data import example, frame

from corner_rows import Corner, Side
from loaderx import DataLoader, Dataset
from loaderx.sources.remote.hub_store import Entry, by_folder

BATCH, RECORDS = 128, 8_000


def _ours(path: Path, **options: Any) -> Side:
    dataset = Dataset.open(path, **options).shuffle(seed=0).repeat().batch(BATCH)
    return lambda: DataLoader(dataset, engine="inline")


def _picked(read: Callable[[np.ndarray], Any]) -> Side:
    """Batches of records in random order, without end."""

    def batches() -> Iterator[Any]:
        rng = np.random.default_rng(0)
        while True:
            yield read(rng.integers(0, RECORDS, BATCH))

    return batches


def lines(files: int, folder: Path) -> tuple[Side, Side]:
    rows = [f"line {number} of some text" for number in range(RECORDS)]
    for number, part in enumerate(np.array_split(np.array(rows), files)):
        (folder / f"{number:05}.txt").write_text("\n".join(part.tolist()) + "\n")
    return _ours(folder), _picked(
        lambda chosen: {"text": np.array([rows[one] for one in chosen], object)}
    )


def json_lines(files: int, folder: Path) -> tuple[Side, Side]:
    rows = [json.dumps({"x": number, "y": number / 2}) for number in range(RECORDS)]
    for number, part in enumerate(np.array_split(np.array(rows), files)):
        (folder / f"{number:05}.jsonl").write_text("\n".join(part.tolist()) + "\n")

    def read(chosen: np.ndarray) -> Any:
        found = [json.loads(rows[one]) for one in chosen]
        dtypes = {"x": np.int32, "y": np.float32}
        return {
            name: np.array([one[name] for one in found], dtype) for name, dtype in dtypes.items()
        }

    return _ours(folder, cache=False), _picked(read)


def tars(files: int, folder: Path) -> tuple[Side, Side]:
    parts = np.array_split(np.arange(RECORDS), files)
    for number, part in enumerate(parts):
        with tarfile.open(folder / f"{number:05}.tar", "w") as archive:
            for one in part:
                info = tarfile.TarInfo(f"{one:06}.cls")
                info.size = len(b"%d" % one)
                archive.addfile(info, io.BytesIO(b"%d" % one))
    return _ours(folder), _picked(
        lambda chosen: {
            "__key__": np.array([f"{one:06}" for one in chosen], object),
            "cls": np.array([int(b"%d" % one) for one in chosen]),
        }
    )


def examples(files: int, folder: Path) -> tuple[Side, Side]:
    rows = [example("image", b"%d" % number, number) for number in range(RECORDS)]
    for number, part in enumerate(np.array_split(np.arange(RECORDS), files)):
        data = b"".join(frame(rows[one]) for one in part)
        (folder / f"{number:05}.tfrecord").write_bytes(data)
    return _ours(folder), _picked(
        lambda chosen: {
            "image": np.array([b"%d" % one for one in chosen], object),
            "label": np.array([int(one) for one in chosen]),
        }
    )


def _columns(count: int) -> dict[str, np.ndarray]:
    return {f"c{number:05}": np.arange(RECORDS, dtype=np.float32) for number in range(count)}


def saved_columns(count: int, folder: Path) -> tuple[Side, Side]:
    columns = _columns(count)
    Dataset.from_arrays(columns).save(folder / "saved")
    return _ours(folder / "saved"), _picked(
        lambda chosen: {name: column[chosen] for name, column in columns.items()}
    )


def opened_csv(count: int, folder: Path) -> tuple[Side, Side]:
    path = folder / "wide.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(_columns(count))
        writer.writerows([range(count)] * 4)

    def plain() -> Iterator[Any]:
        with open(path, newline="") as file:
            names, *rows = csv.reader(file)
        cells = np.array(rows, np.int64).T
        yield dict(zip(names, cells, strict=True))

    return lambda: DataLoader(Dataset.open(path, cache=False).batch(4), engine="inline"), plain


def opened_npz(count: int, folder: Path) -> tuple[Side, Side]:
    path = folder / "wide.npz"
    np.savez_compressed(path, **{name: one[:BATCH] for name, one in _columns(count).items()})

    def plain() -> Iterator[Any]:
        with np.load(path) as archive:
            yield {name: archive[name] for name in archive.files}

    return lambda: DataLoader(Dataset.open(path).batch(BATCH), engine="inline"), plain


def opened_lines(count: int, folder: Path) -> tuple[Side, Side]:
    path = folder / "wide.jsonl"
    path.write_text((json.dumps(dict.fromkeys(_columns(count), 1)) + "\n") * 4)

    def plain() -> Iterator[Any]:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        yield {name: np.array([row[name] for row in rows], np.int32) for name in rows[0]}

    return lambda: DataLoader(Dataset.open(path, cache=False).batch(4), engine="inline"), plain


def _table(count: int) -> Any:
    import pyarrow as pa

    return pa.table({name: one[:BATCH] for name, one in _columns(count).items()})


def _arrays(table: Any) -> dict[str, np.ndarray]:
    columns = zip(table.column_names, table.columns, strict=True)
    return {name: column.to_numpy() for name, column in columns}


def opened_arrow(count: int, folder: Path) -> tuple[Side, Side]:
    import pyarrow as pa

    path, table = folder / "wide.arrow", _table(count)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)

    def plain() -> Iterator[Any]:
        with pa.memory_map(str(path)) as source:
            yield _arrays(pa.ipc.open_file(source).read_all())

    return lambda: DataLoader(Dataset.open(path).batch(BATCH), engine="inline"), plain


def opened_parquet(count: int, folder: Path) -> tuple[Side, Side]:
    """A later opening, of the copy."""
    import pyarrow.parquet as pq

    path = folder / "wide.parquet"
    pq.write_table(_table(count), path)

    def ours() -> Iterator[Any]:
        dataset = Dataset.open(path, cache=folder / "cache")
        yield from DataLoader(dataset.batch(BATCH), engine="inline")

    def plain() -> Iterator[Any]:
        yield _arrays(pq.read_table(path))

    return ours, plain


def listed(count: int, _: Path) -> tuple[Side, Side]:
    """The folders of a repository on the hub, 100 files in each."""
    names = [f"data/{number:05}/{one:03}.tar" for number in range(count) for one in range(100)]
    tree = {name: Entry(1, "1", "") for name in names}

    def ours() -> Iterator[Any]:
        yield {"files": np.array([len(found) for found in by_folder(tree).values()][-count:])}

    def plain() -> Iterator[Any]:
        found: dict[str, list[str]] = {}
        for name in names:
            folder, _, file = name.rpartition("/")
            found.setdefault(folder, []).append(file)
        yield {"files": np.array([len(files) for files in found.values()])}

    return ours, plain


IN_MEMORY = "the plain loop has all records in memory; the growth tells"
BY_FILE = "each column is an array of its own in the copy, and is mapped; the growth tells"
BY_COLUMN = "each column has a type of its own, found in its cells; the growth tells"

CORNERS = [
    Corner("shuffled_text_files", lines, (10, 1_000), reason=IN_MEMORY),
    Corner("shuffled_json_files", json_lines, (10, 1_000)),
    Corner("shuffled_tar_files", tars, (10, 500), reason=IN_MEMORY),
    Corner("shuffled_example_files", examples, (10, 1_000), reason=IN_MEMORY),
    Corner(
        "saved_columns",
        saved_columns,
        (100, 1_000),
        batches=64,
        reason="a batch is written into aligned memory of its own",
    ),
    Corner("open_wide_csv", opened_csv, (2_000, 16_000), batches=1, reason=BY_COLUMN),
    Corner("open_wide_json", opened_lines, (2_000, 16_000), batches=1, reason=BY_COLUMN),
    Corner("open_wide_arrow", opened_arrow, (1_000, 6_000), batches=1, reason=BY_COLUMN),
    Corner("open_wide_parquet", opened_parquet, (500, 2_000), batches=1, reason=BY_FILE),
    Corner("open_wide_npz", opened_npz, (500, 5_000), batches=1, reason=BY_COLUMN),
    Corner(
        "list_hub_folders",
        listed,
        (100, 1_000),
        batches=1,
        reason="entries know their size and version; the growth tells",
    ),
]
