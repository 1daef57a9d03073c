"""Finite streams, each made from a number, whose records can be told apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from loaderx import Dataset

BATCH, LANES = 16, 8


def make_documents(count: int, *, seed: int, base: int = 0) -> list[dict[str, Any]]:
    """Records with a number, and as many tokens as its length says, all equal to that number."""
    lengths = np.random.default_rng(seed).integers(1, 30, count).tolist()
    return [
        {"id": np.int64(base + n), "tokens": np.full(length, base + n, np.int32)}
        for n, length in enumerate(lengths)
    ]


def is_kept(record: dict[str, Any]) -> bool:
    return int(record["id"]) % 5 != 2


def twice_or_not(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [record] * (int(record["id"]) % 3)


def fail_at_some(record: dict[str, Any]) -> dict[str, Any]:
    if int(record["id"]) % 11 == 4:
        raise ValueError("a bad record")
    return record


def without_tokens(record: dict[str, Any]) -> dict[str, Any]:
    return {"id": record["id"]}


def finite_chain(number: int, *, pads: bool) -> tuple[Dataset[Any], Counter[int] | None]:
    """A chain of random stages, and how often each id must come.

    None: where a mix ends with the first of its datasets, that depends on its lanes.
    """
    rng = np.random.default_rng(number)
    count = int(rng.integers(60, 400))
    dataset: Dataset[Any] = Dataset.from_source(make_documents(count, seed=number))
    ids: Counter[int] | None = Counter(range(count))
    if rng.random() < 0.3:
        other = Dataset.from_source(make_documents(80, seed=number + 1, base=1000))
        dataset = Dataset.mix([dataset, other], [3, 1], stop="all_exhausted")
        ids.update(range(1000, 1080))
    if rng.random() < 0.5:
        dataset = dataset.shuffle(seed=int(rng.integers(9)))
    packed = False
    for stage in rng.permutation(["filter", "flat_map", "on_error", "shuffle", "mix"])[:3].tolist():
        if stage == "filter":
            dataset, ids = dataset.filter(is_kept), chosen(ids, is_kept)
        elif stage == "flat_map":
            dataset = dataset.flat_map(twice_or_not)
            ids = ids and Counter({i: n * (i % 3) for i, n in ids.items() if i % 3})
        elif stage == "on_error":
            dataset = dataset.map(fail_at_some).on_error("skip")
            ids = chosen(ids, lambda record: record["id"] % 11 != 4)
        elif stage == "shuffle":
            dataset = dataset.shuffle(window=16)
        elif stage == "mix" and rng.random() < 0.5:
            more = Dataset.from_source(make_documents(200, seed=3, base=2000)).filter(is_kept)
            dataset, ids = Dataset.mix([dataset, more], [2, 1]), None
    if rng.random() < 0.4:
        dataset, packed = dataset.map(leave_id).pack({"tokens": 32}, window=32), True
        dataset = dataset.map(only_tokens)
    if not packed:
        dataset = dataset.map(without_tokens)
    if not dataset_is_stream(dataset):
        dataset, ids = dataset.filter(is_kept), chosen(ids, is_kept)
    if rng.random() < 0.2:
        dataset, ids = dataset.repeat(2), ids and Counter({i: 2 * n for i, n in ids.items()})
    return dataset.batch(BATCH, lanes=LANES, pad_remainder=pads, drop_remainder=not pads), ids


def leave_id(record: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": record["tokens"]}


def only_tokens(row: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": row["tokens"], "segments": row["tokens_segment_ids"]}


def dataset_is_stream(dataset: Dataset[Any]) -> bool:
    try:
        len(dataset)
    except TypeError:
        return True
    return False


def chosen(ids: Counter[int] | None, keep: Any) -> Counter[int] | None:
    return ids and Counter({i: n for i, n in ids.items() if keep({"id": i})})


def ids_of(batches: Iterable[dict[str, Any]]) -> list[int]:
    """The id of each record, in batches of records or of packed rows."""
    found: list[int] = []
    for batch in batches:
        if "id" in batch:
            found += (
                batch["id"][batch["mask"]].tolist() if "mask" in batch else batch["id"].tolist()
            )
            continue
        for tokens, segments in zip(batch["tokens"], batch["segments"], strict=True):
            starts = np.flatnonzero(np.diff(segments, prepend=0) * (segments > 0))
            found += tokens[starts].tolist()
    return found
