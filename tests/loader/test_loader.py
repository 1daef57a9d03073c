"""The loader: both forms, epochs, statistics."""

from __future__ import annotations

import io
import itertools
import subprocess
import sys

import numpy as np
import pytest

import loaderx as lx
from chains import arrays
from loaderx import (
    ArgumentError,
    ArgumentTypeError,
    ChainError,
    DataLoader,
    Dataset,
    StateError,
)
from oracle import assert_same
from plain import grow, jitter

X = np.arange(1000, dtype=np.float32).reshape(500, 2)
Y = np.arange(500, dtype=np.int32) % 10


def test_the_published_form_runs_as_it_is(tmp_path):
    np.savez(tmp_path / "train.npz", data=X, label=Y)
    path, data, label = tmp_path / "train.npz", "data", "label"

    def transform(batch):
        return {"data": batch["data"] / 2, "label": batch["label"]}

    loader = DataLoader(
        dataset=Dataset(path, data, label), batch_size=256, num_epochs=10, transform=transform
    )
    steps = 0
    for step, batch in enumerate(loader):
        assert batch["data"].shape == ((256, 2) if step % 2 == 0 else (244, 2))
        assert np.array_equal(batch["data"][:, 0] % 10, batch["label"])
        steps += 1
    assert steps == len(loader) == 20


def test_the_short_form_is_a_chain():
    source = [{"x": i} for i in range(10)]
    short = DataLoader(
        source, batch_size=4, num_epochs=3, seed=5, transform=lambda b: {"x": b["x"] * 2},
        drop_remainder=True,
    )  # fmt: skip
    chain = (
        Dataset.from_source(source).shuffle(5).batch(4, drop_remainder=True)
        .map(lambda b: {"x": b["x"] * 2}).repeat(3)
    )  # fmt: skip
    assert_same(short, chain)
    assert len(short) == 6
    plain = DataLoader(source, batch_size=4, shuffle=False)
    assert [b["x"].tolist() for b in plain] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_endless():
    loader = DataLoader(arrays(5), batch_size=2, num_epochs=None)
    with pytest.raises(TypeError, match="endless"):
        len(loader)
    iterator = iter(loader)
    assert [len(next(iterator)["x"]) for _ in range(7)] == [2, 2, 1, 2, 2, 1, 2]


def test_records_without_batches():
    loader = DataLoader(arrays(5).shuffle(1).map(grow), engine="threads")
    assert_same(loader, arrays(5).shuffle(1).map(grow))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"batch_size": 4, "shuffle": "no"},
            ArgumentTypeError,
            r"`shuffle` must be True or False, got 'no' \(str\)",
        ),
        ({"shuffle": True}, ArgumentTypeError, "`shuffle` needs `batch_size`. Without"),
        ({"num_epochs": 3}, ArgumentTypeError, r"dataset: \.repeat\(num_epochs\), after"),
        ({"seed": 3}, ArgumentTypeError, "`seed` needs `batch_size`"),
        ({"transform": len}, ArgumentTypeError, r"dataset: \.map\(transform\), after"),
        ({"drop_remainder": False}, ArgumentTypeError, "`drop_remainder` needs `batch_size`"),
        ({"batch_size": 0}, ArgumentError, "`batch_size` must be at least 1, got 0"),
        ({"batch_size": "8"}, ArgumentTypeError, "`batch_size` must be an integer, got '8'"),
        ({"batch_size": 2, "seed": "a"}, ArgumentTypeError, "`seed` must be an integer, got 'a'"),
        ({"batch_size": 2, "num_epochs": 0}, ArgumentError, "`num_epochs` must be at least 1"),
        (
            {"batch_size": 2, "transform": 3},
            ArgumentTypeError,
            "`transform` must be a function of a batch",
        ),
        (
            {"batch_size": 20, "drop_remainder": True},
            ArgumentError,
            "leaves nothing of 10 records. Use a smaller batch_size, or leave drop_remainder out",
        ),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        DataLoader(arrays(10), **arguments)


def test_batch_size_on_a_batched_dataset():
    with pytest.raises(ChainError, match=r"already has a .batch\(...\). Leave one out"):
        DataLoader(arrays(10).batch(2), batch_size=4)


def test_a_loader_of_nothing_indexable():
    with pytest.raises(ArgumentTypeError, match="a source needs __len__ and __getitem__"):
        DataLoader(x for x in range(3))


def test_epochs():
    loader = DataLoader(arrays(10).shuffle(1).random_map(jitter).batch(4))
    whole = list(arrays(10).shuffle(1).random_map(jitter).batch(4).repeat(3))
    assert_same([b for e in range(3) for b in loader.epoch(e)], whole)
    short = DataLoader(arrays(10), batch_size=4, num_epochs=3, seed=1)
    assert_same([b for e in range(3) for b in short.epoch(e)], list(short))
    with pytest.raises(ArgumentError, match="`epoch` must be at least 0"):
        loader.epoch(-1)
    with pytest.raises(ChainError, match=r"put .repeat\(\) after .batch"):
        DataLoader(arrays(10).repeat().batch(4)).epoch(0)


def test_stats():
    loader = DataLoader(arrays(1000).map(grow).batch(10), engine="inline")
    empty = loader.stats()
    assert (empty.batches, empty.records, empty.engine) == (0, 0, "none yet")
    iterator = iter(loader)
    for _ in range(70):
        next(iterator)
    stats = loader.stats()
    assert (stats.batches, stats.records) == (70, 700)
    assert stats.bytes == 700 * 24
    assert stats.engine == "inline"
    assert 0 < stats.waited_s <= stats.seconds
    assert {"order", "map(grow)", "source", "batch(10)"} <= set(stats.stage_s)
    assert "70 batches, 700 records" in str(stats)
    list(iterator)
    assert loader.stats().records == 1000


def test_stats_name_the_stages_below_on_error():
    loader = DataLoader(arrays(20).map(grow).on_error("replace").batch(10), engine="inline")
    list(loader)
    assert {"map(grow)", "source"} <= set(loader.stats().stage_s)


def test_stats_that_are_asked_for_while_a_batch_is_taken():
    """As a thread that watches does: nothing is counted twice, or not at all."""
    loader = DataLoader(Dataset.range(40).batch(4))
    iterator = iter(loader)
    next(iterator)

    class Busy(type(loader._counters)):
        seconds = property(lambda self: self.taken, lambda self, value: self.take(value))
        taken = 0.0

        def take(self, value):
            if not self.taken:
                next(iterator)  # another thread's
            self.taken = value

    del loader._counters.__dict__["seconds"]
    loader._counters.__class__ = Busy
    first = loader.stats()
    assert (first.batches, first.records) == (1, 4)
    assert len(list(iterator)) == 8
    last = loader.stats()
    assert (last.batches, last.records) == (10, 40)


def test_stats_survive_a_dropped_iterator():
    loader = DataLoader(arrays(1000).batch(10))
    for number, _ in enumerate(loader):
        if number == 9:
            break
    stats = loader.stats()
    assert (stats.batches, stats.records) == (10, 100)
    assert 0 < stats.waited_s <= stats.seconds


def test_a_state_beyond_the_end_of_its_pass():
    saved = iter(DataLoader(arrays(10).batch(2).repeat()))
    saved.seek(9)
    short = iter(DataLoader(arrays(10).batch(2).repeat().take(3)))
    said = r"step 9, but this stream has steps 5 to 7 and its end at 8\. Was it saved with a larger"
    with pytest.raises(StateError, match=said):
        short.set_state(saved.get_state())


def test_stats_count_short_batches():
    loader = DataLoader(arrays(10), batch_size=4, num_epochs=3, engine="inline")
    list(loader)
    assert (loader.stats().batches, loader.stats().records) == (9, 30)


def test_tqdm():
    tqdm = pytest.importorskip("tqdm")
    out = io.StringIO()
    for _ in tqdm.tqdm(DataLoader(arrays(10).batch(2)), file=out):
        pass
    assert "5/5" in out.getvalue()


def test_tqdm_of_an_iterator():
    tqdm = pytest.importorskip("tqdm")
    loader = DataLoader(arrays(10).shuffle(0).batch(2))
    assert tqdm.tqdm(loader.epoch(3), file=io.StringIO()).total == 5
    assert tqdm.tqdm(iter(loader), file=io.StringIO()).total == 5
    begun = loader.epoch(3)
    next(begun)
    resumed = loader.epoch(3)
    resumed.set_state(begun.get_state())
    assert tqdm.tqdm(resumed, file=io.StringIO()).total == 4  # what is left
    stream = DataLoader(arrays(10).filter(lambda r: True).batch(2))
    assert tqdm.tqdm(stream.epoch(0), file=io.StringIO()).total is None
    assert tqdm.tqdm(iter(DataLoader(arrays(4).repeat())), file=io.StringIO()).total is None


def test_the_length_of_an_iterator_is_what_is_left():
    iterator = DataLoader(arrays(10).batch(4).repeat(2)).__iter__()
    for left in range(6, 0, -1):
        assert len(iterator) == left
        next(iterator)
    assert len(iterator) == 0
    iterator.seek(4)
    assert len(iterator) == len(list(iterator)) == 2
    stream = iter(DataLoader(arrays(10).filter(lambda r: True).batch(2)))
    with pytest.raises(ArgumentTypeError, match="a stream has no length.*Call loader.counts"):
        len(stream)
    assert len(list(stream)) == 5
    endless = iter(DataLoader(arrays(4).batch(2).repeat()))
    with pytest.raises(ArgumentTypeError, match="an endless loader has no length"):
        len(endless)


@pytest.mark.parametrize(
    "dataset",
    [
        arrays(4).batch(2),
        arrays(4).batch(2).repeat(),
        arrays(4).filter(lambda r: True).batch(2),
        arrays(4).filter(lambda r: False),
    ],
)
def test_datasets_loaders_and_iterators_are_true(dataset):
    loader = DataLoader(dataset)
    iterator = iter(loader)
    assert bool(dataset) is bool(loader) is bool(iterator) is True
    list(itertools.islice(iterator, 5))
    assert iterator  # at its end, too


def test_repr():
    text = repr(DataLoader(arrays(4).batch(2), engine="inline"))
    assert text.startswith("DataLoader(Inline()) of\nDataset.from_arrays(")
    assert repr(iter(DataLoader(arrays(4).batch(2)))) == "<LoaderIterator at step 0>"


def test_a_script_from_stdin():
    script = (
        "import loaderx as lx\n"
        "ds = lx.Dataset.range(6).map(lambda x: x * 2).batch(3)\n"
        "for b in lx.DataLoader(ds): print(b.tolist())\n"
    )
    done = subprocess.run(
        [sys.executable, "-"], input=script, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "[0, 2, 4]\n[6, 8, 10]\n"
    assert done.stderr == ""


def test_a_trillion_records_take_no_memory():
    import tracemalloc

    tracemalloc.start()
    iterator = iter(DataLoader(Dataset.range(10**12).shuffle(seed=0).batch(256)))
    seen = [int(next(iterator)[0]) for _ in range(100)]
    iterator.seek(10**9)
    next(iterator)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(set(seen)) == 100
    assert peak < 1_000_000


def test_the_surface():
    assert lx.__all__ == sorted(lx.__all__)
    for name in lx.__all__:
        assert getattr(lx, name) is not None
