"""`shuffle(block=...)`: blocks of records in random order, then windows of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunk_sources import Chunks
from loaderx import ArgumentError, ArgumentTypeError, ChainError, DataLoader, Dataset, LoaderxError
from loaderx.sources import Indices, Lend, Source
from oracle import assert_same, elements
from streams import even, numbers


class Chunked(Source):
    """Numbers in chunks of these sizes."""

    thread_safe = True

    def __init__(self, sizes: list[int]) -> None:
        self.starts = np.cumsum([0, *sizes])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def chunks(self) -> Indices:
        return self.starts

    def gather(self, indices: Indices, lend: Lend) -> Indices:
        return indices.copy()


def sources(sizes):
    return Dataset.from_source(Chunked(sizes))


# The order --------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [1, 2, 3, 7, 10, 64, 299])
def test_a_permutation_for_every_length(block):
    for length in range(block, 301):
        dataset = Dataset.range(length).shuffle(1, block=block, window=3 * block)
        found = dataset.batch(length)[0]
        assert np.array_equal(np.sort(found), np.arange(length)), length


def test_records_stay_in_order_within_a_block_without_a_window():
    found = numbers(Dataset.range(43).shuffle(2, block=10))
    whole = [number for number in found if number < 40]
    blocks = [whole[k : k + 10] for k in range(0, 40, 10)]
    assert [number for number in found if number >= 40] == [40, 41, 42]
    assert sorted(blocks) == [list(range(k, k + 10)) for k in range(0, 40, 10)]
    assert blocks != sorted(blocks)


def test_epochs_differ():
    found = numbers(Dataset.range(43).shuffle(0, block=5, window=10).repeat(3))
    epochs = [tuple(found[k : k + 43]) for k in range(0, 129, 43)]
    assert len(set(epochs)) == 3
    assert all(sorted(epoch) == list(range(43)) for epoch in epochs)


@settings(max_examples=80, deadline=None)
@given(st.data(), st.integers(1, 60), st.integers(0, 5))
def test_equals_the_slow_twin(data, length, seed):
    block = data.draw(st.integers(1, length))
    blocks = data.draw(st.sampled_from([None, 1, 2, 5]))
    epochs = data.draw(st.integers(1, 3))
    dataset = Dataset.range(length).shuffle(seed, block=block, window=blocks and blocks * block)
    assert_same(dataset.repeat(epochs), elements(dataset.repeat(epochs)))


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.data())
def test_blocks_of_the_source_equal_the_slow_twin(sizes, data):
    if not sum(sizes):
        sizes = [*sizes, 3]
    window = data.draw(st.sampled_from([None, 1, 4, 7, 100]))
    dataset = sources(sizes).shuffle(3, block="source", window=window).repeat(2)
    assert_same(dataset, elements(dataset))
    found = numbers(dataset)
    assert sorted(found) == sorted([*range(sum(sizes))] * 2)


def test_slices_and_joins_keep_the_blocks_of_their_sources():
    one, other = sources([4, 4, 4]), sources([3, 3])
    joined = Dataset.concatenate([one[2:10], other]).map(lambda x: x)
    found = numbers(joined.shuffle(1, block="source"))
    blocks = [[2, 3], [4, 5, 6, 7], [8, 9], [0, 1, 2], [3, 4, 5]]
    while found:
        first = next(block for block in blocks if found[: len(block)] == block)
        blocks.remove(first)
        del found[: len(first)]
    assert not blocks
    part = sources([4, 4, 4]).split(0.5, 0.5, shuffle=False)[1]
    assert sorted(numbers(part.shuffle(0, block="source"))) == [6, 7, 8, 9, 10, 11]


def test_shards_are_the_blocks_of_files(tmp_path):
    for number in range(3):
        lines = [f'{{"x": {10 * number + line}}}\n' for line in range(4)]
        (tmp_path / f"{number}.jsonl").write_text("".join(lines))
    records = Dataset.open(tmp_path / "*.jsonl", cache=tmp_path / "cache")
    found = [int(record["x"]) for record in records.shuffle(1, block="source")]
    blocks = [found[k : k + 4] for k in range(0, 12, 4)]
    assert sorted(blocks) == [[0, 1, 2, 3], [10, 11, 12, 13], [20, 21, 22, 23]]


# Everywhere the same ----------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["inline", "threads"])
def test_restored_at_every_step_on_one_two_and_four_hosts(engine):
    dataset = sources([9, 4, 11, 9]).shuffle(4, block="source", window=10)
    for chain in (dataset, Dataset.range(33).shuffle(1, block=4, window=8)):
        batches = chain.batch(8, drop_remainder=True).repeat(2)
        whole = [batch.tolist() for batch in batches]
        for hosts in (1, 2, 4):
            parts = []
            for host in range(hosts):
                loader = DataLoader(batches, engine=engine, shard=(host, hosts))
                iterator, part = iter(loader), []
                for _ in range(len(whole)):
                    again = iter(loader)
                    again.set_state(iterator.get_state())
                    part.append(next(iterator).tolist())
                    assert next(again).tolist() == part[-1]
                    again.close()
                parts.append(part)
                loader.close()
            assert [[*itertools.chain(*rows)] for rows in zip(*parts)] == whole


def test_below_a_stream():
    records = Dataset.range(100).shuffle(1, block=7, window=14)
    again = records.filter(even).shuffle(2, window=16)
    assert sorted(numbers(again)) == list(range(0, 100, 2))
    assert numbers(records.filter(even)) == [x for x in numbers(records) if x % 2 == 0]


def chunked(sizes, window):
    return Dataset.from_source(Chunks(sizes)).shuffle(2, block="source", window=window)


@pytest.mark.parametrize("window", [5, 20])
def test_units_of_a_stream_are_windows_of_chunks(window):
    """Some are empty: a chunk of 30 records begins in one stretch of 30, and covers others."""
    records = chunked([9, 4, 11, 5, 7, 30, 6], window)
    stream = records.map(dict).filter(lambda record: record["x"] % 3 > 0)
    expected = [int(record["x"]) for record in records if record["x"] % 3]
    assert [int(record["x"]) for record in stream] == expected
    batches = stream.batch(4).repeat(2)
    loader = DataLoader(batches, engine="threads")
    iterator, states, found = iter(loader), [], []
    for batch in iterator:
        found.append(batch["x"].tolist())
        states.append(iterator.get_state())
    assert [x for batch in found for x in batch][: len(expected)] == expected
    assert f"units {-(-30 // window) * window}" in states[0]["chain"]
    for number, state in enumerate(states[:-1]):
        again = iter(DataLoader(batches, engine="inline"))
        again.set_state(state)
        assert next(again)["x"].tolist() == found[number + 1]
    loader.close()


def test_lanes_of_windows_of_chunks():
    stream = chunked([9, 4, 11, 5, 7, 30, 6], 10).filter(lambda record: record["x"] % 3 > 0)
    batches = stream.repeat().batch(8, lanes=2).take(20)
    whole = [batch["x"].tolist() for batch in batches]
    parts = [[b["x"].tolist() for b in DataLoader(batches, shard=(host, 2))] for host in range(2)]
    assert [one + other for one, other in zip(*parts)] == whole
    packed = chunked([40] * 9, 80).map(lambda r: {"t": np.ones(int(r["x"]) % 5 + 1, np.int32)})
    rows = sum(int((row["t"] > 0).sum()) for row in packed.pack({"t": 8}, window=50))
    assert rows == sum(x % 5 + 1 for x in range(360))


# What is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"block": 0}, ArgumentError, "`block` must be at least 1, got 0."),
        (
            {"block": 11},
            ArgumentError,
            "shuffle(block=11): there are 10 records, so they are one block, and no block would "
            "move. Use smaller blocks, or .shuffle() for all records.",
        ),
        (
            {"block": 4, "window": 3},
            ArgumentError,
            "shuffle(block=4, window=3): a window is made of whole blocks, so it cannot be smaller "
            "than one. Write window=4 or a multiple of it.",
        ),
        (
            {"block": 4, "window": 10},
            ArgumentError,
            "shuffle(block=4, window=10): a window is made of whole blocks, so it must be a "
            "multiple of 4. Write window=8 or window=12.",
        ),
        (
            {"block": "shard"},
            ArgumentTypeError,
            '`block` must be a number of records, or "source" for the blocks that the source is '
            "stored in; got 'shard'.",
        ),
        (
            {"block": "source"},
            ChainError,
            'shuffle(block="source") needs a source that says its blocks, such as the row groups '
            "of Parquet files, chunks of HDF5 or the shards of a dataset, with nothing but maps, "
            "slices and concatenate in between. Here there are none: say how many records make a "
            "block, .shuffle(block=1000, window=10_000).",
        ),
    ],
)
def test_refused(arguments, error, message):
    with pytest.raises(error) as caught:
        Dataset.range(10).shuffle(**arguments)
    assert str(caught.value) == message


def test_refused_where_blocks_cannot_move():
    with pytest.raises(ChainError) as caught:
        Dataset.range(10).filter(even).shuffle(block=2, window=4)
    assert str(caught.value) == (
        "shuffle(block=2) needs a dataset whose length is known: put it before the stage that "
        "makes it a stream (filter, flat_map, pack, ...), and .shuffle(window=4) after it."
    )
    with pytest.raises(ChainError) as caught:
        Dataset.range(10).repeat().shuffle(block=2)
    assert str(caught.value) == (
        "shuffle(block=2) needs a dataset that ends: put it before .repeat()."
    )
    with pytest.raises(ChainError) as caught:
        sources([4, 4]).batch(2).shuffle(block="source")
    assert str(caught.value) == (
        'shuffle(block="source") moves blocks of records: put it before .batch(...).'
    )


@pytest.mark.parametrize("starts", [[1, 4], [0, 3], [0, 3, 2, 4], [[0, 4]], [], [0.0, 4.0]])
def test_a_source_with_wrong_chunks_is_named(starts):
    class Wrong(Chunked):
        def chunks(self):
            return np.array(starts)

    with pytest.raises(LoaderxError, match=r"Wrong\.chunks\(\) must give where chunks begin"):
        Dataset.from_source(Wrong([4])).shuffle(block="source")
