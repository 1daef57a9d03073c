"""Words of other libraries: they work, or the error says what to write."""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings

import numpy as np
import pytest

import loaderx as lx
from chains import arrays
from loaderx import (
    ArgumentError,
    ArgumentTypeError,
    DataLoader,
    Dataset,
    LoaderxWarning,
    RecordError,
    hints,
)
from plain import grow


def test_the_words_that_work():
    a, b = Dataset.range(3), Dataset.range(3, 6)
    assert [int(n) for n in Dataset.concatenate(a, b)] == list(range(6))
    assert [int(n) for n in Dataset.concatenate([a, b])] == list(range(6))
    assert [tuple(map(int, pair)) for pair in Dataset.zip(a, b)] == [(0, 3), (1, 4), (2, 5)]
    assert [tuple(map(int, pair)) for pair in Dataset.zip([a, b])] == [(0, 3), (1, 4), (2, 5)]
    assert Dataset.zip(datasets={"a": a, "b": b})[0] == {"a": 0, "b": 3}
    assert [x.tolist() for x in a.batch(batch_size=2)] == [[0, 1], [2]]
    x, y = np.zeros((4, 2)), np.arange(4)
    record = Dataset.from_arrays(x, y)[1]
    assert isinstance(record, tuple)
    assert record[0].tolist() == [0, 0]
    assert record[1] == 1


ATTRIBUTES = [
    (lambda d: d.snapshot(), r"Write ds\.save\(folder\)"),
    (lambda d: d.prefetch(2), r"DataLoader\(ds, engine=..., num_workers=..., prefetch=...\)"),
    (lambda d: d.shard(2, 0), r"DataLoader\(ds, shard=\(index, count\)\), or ds\[index::count\]"),
    (lambda d: d.as_numpy_iterator(), "Iterate over it"),
    (lambda d: d.enumerate(), r"\.map_with_index\(f\)"),
    (lambda d: d.with_format("jax"), "Elements are NumPy arrays"),
    (lambda d: d.select([1]), r"ds\[indices\]"),
    (lambda d: d.to_iter_dataset(), r"DataLoader\(ds\)"),
    (lambda d: d.rename("a", "b"), r"\.map\(f\)"),
    (lambda d: d.padded_batch(4), r"pad_to"),
    (lambda d: d.train_test_split(0.2), r"\.split\(0\.8, 0\.2\)"),
    (lambda d: Dataset.source([1]), r"Dataset\.from_source"),
    (lambda d: Dataset.from_tensor_slices(([1], [2])), r"Dataset\.from_arrays\(x, y\)"),
    (lambda d: Dataset.from_file("x.npy"), r"Dataset\.open\(path\)"),
    (lambda d: Dataset.from_parquet("x.parquet"), r"Dataset\.open\(path\)"),
    (lambda d: Dataset.from_generator(int), r"Dataset\.from_iterable"),
    (lambda d: DataLoader(d).set_epoch(1), r"loader\.epoch\(e\)"),
    (lambda d: DataLoader(d).state_dict(), r"it\.get_state\(\)"),
    (lambda d: DataLoader(d).next(), r"it = iter\(loader\), then next\(it\)"),
    (lambda d: DataLoader(d).map(grow), r"a stage of the dataset. Write DataLoader\(ds\.map\("),
    (lambda d: DataLoader(d).step, r"it = iter\(loader\), then it\.step"),
    (lambda d: d.next(), r"Write ds\[0\], or next\(iter\(ds\)\)"),
    (lambda d: iter(DataLoader(d)).get_next(), r"Write next\(it\)"),
    (lambda d: iter(DataLoader(d)).reset(), r"Write it\.seek\(0\)"),
    (lambda d: d.iloc[3], r"ds\[i\]"),
    (lambda d: d.shape, r"ds\.element_spec"),
    (lambda d: lx.TensorDataset([1]), r"Dataset\.from_arrays\(x, y\)"),
    (lambda d: lx.WeightedRandomSampler([1], 1), r"\.sample\(weights, n\)"),
    (lambda d: lx.MapDataset.source([1]), r"Dataset\.from_source"),
]


@pytest.mark.parametrize(("write", "advice"), ATTRIBUTES)
def test_attributes(write, advice):
    with pytest.raises(AttributeError, match=f"has no attribute '.*{advice}"):
        write(arrays(4))


ARGUMENTS = [
    (lambda d: DataLoader(d, batch_size=2, drop_last=True), "drop_remainder=True"),
    (lambda d: DataLoader(d, batch_size=2, collate_fn=list), r"\.batch\(n, collate_fn=f\)"),
    (lambda d: DataLoader(d, sampler=[1]), r"\.shuffle\(seed\), ds\[indices\]"),
    (lambda d: DataLoader(d, batch_sampler=[1]), r"\.shuffle\(seed\), ds\[indices\]"),
    (lambda d: DataLoader(d, pin_memory=True), r"sharding=jax\.devices\(\)\[0\]"),
    (lambda d: DataLoader(d, persistent_workers=True), r"loader\.close\(\)"),
    (lambda d: DataLoader(d, prefetch_factor=2), "prefetch=n"),
    (lambda d: DataLoader(d, worker_init_fn=print), r"engines\.Processes\(init=f\)"),
    (lambda d: DataLoader(d, timeout=3), r"Leave it out.*engines\.Processes\(timeout_s=...\)"),
    (
        lambda d: DataLoader(d, batch_size=2, shuffel=True),
        r"'shuffel'. Did you mean 'shuffle'\?",
    ),
    (lambda d: d["x"], r"by number, got 'x'\. For one leaf .* write \.map\(lambda r: r\['x'\]\)"),
    (lambda d: d.filter(bool)["x"], r"\.map\(lambda r: r\['x'\]\)"),
    (lambda d: DataLoader(d, generator=None), "seed=0"),
    (lambda d: DataLoader(d, 32), r"DataLoader\(dataset, batch_size=32\)"),
    (lambda d: DataLoader(d, worker_count=3), "num_workers"),
    (lambda d: DataLoader(d).epoch(), r"Write loader\.epoch\(e\), where e is the number"),
    (lambda d: d.batch(2).unbatch(3), r"write \.unbatch\(\)\.batch\(n\)"),
    (
        lambda d: DataLoader(d, batch_size=2, transform=3),
        r"`transform` must be a function of a batch.*; got 3 \(int\)",
    ),
    (lambda d: d.map(grow, batched="yes"), r"`batched` must be True or False, got 'yes'"),
    (lambda d: d.filter(grow, batched=None), "`batched` must be True or False, got None"),
    (lambda d: d.batch(2, pad_to=0), "`pad_to` must be a dict .*, got 0"),
    (lambda d: DataLoader(d, nonsense=3), "It takes dataset, batch_size, shuffle, num_epochs"),
    (lambda d: Dataset.open("x", "train"), r'Dataset\.open\(path, split="train"\)'),
    (
        lambda d: Dataset.open("x", splits="train"),
        r"'splits'. Did you mean 'split'\? It takes",
    ),
    (lambda d: Dataset.open("x", delimiter=";"), r"sources\.Csv\(path, delimiter=...\)"),
    (lambda d: d.map(grow, num_parallel_calls=4), r"DataLoader\(ds, num_workers=...\)"),
    (lambda d: d.map(grow, num_proc=4), r"DataLoader\(ds, num_workers=...\)"),
    (lambda d: d.map(grow, batched=True, batch_size=4), "loaderx cuts them"),
    (lambda d: d.map(grow, with_indices=True), "map_with_index"),
    (lambda d: d.filter(predicate=grow), r"\.filter\(f\)"),
    (lambda d: d.shuffle(buffer_size=100), "no buffer size: it shuffles the whole dataset"),
    (lambda d: d.shuffle(100, seed=3), "no buffer size: it shuffles the whole dataset"),
    (lambda d: d.shuffle(0, reshuffle_each_iteration=True), "every epoch has a new order"),
    (lambda d: d.batch(2, drop_last=True), "drop_remainder=True"),
    (lambda d: d.batch(2, True), r"\.batch\(32, drop_remainder=True\)"),
    (lambda d: d.batch(n=2), "batch_size"),
    (
        lambda d: d.batch(2, drop_remainer=True),
        r"Did you mean 'drop_remainder'\? It takes batch_size, drop_remainder,",
    ),
    (lambda d: d.repeat(count=2), "num_epochs"),
    (lambda d: d.sample(3), r"ds\.shuffle\(seed=0\)\.take\(n\)"),
    (lambda d: d.take(count=2), r"\.take\(10\)"),
    (lambda d: d.concatenate(d), r"Dataset\.concatenate\(\[a, b\]\), not a\.concatenate\(b\)"),
    (lambda d: d.concatenate([d, d]), "is called on the class"),
    (lambda d: d.zip(d), r"Dataset\.zip\(\[a, b\]\)"),
    (lambda d: d.mix([d]), r"Dataset\.mix\(\[a, b\]\)"),
    (lambda d: Dataset.zip(d), r"zip needs several datasets"),
    (lambda d: Dataset.concatenate(d), r"concatenate needs several datasets"),
    (lambda d: Dataset.mix(d, d), r"mix needs a list of datasets, as in Dataset\.mix\(\[a, b\]\)"),
]


@pytest.mark.parametrize(("write", "advice"), ARGUMENTS)
def test_arguments(write, advice):
    with pytest.raises(ArgumentTypeError, match=advice):
        write(arrays(4))


def test_a_type_error_inside_a_function_is_not_touched():
    class Strange:
        def __len__(self):
            raise TypeError("got an unexpected keyword argument 'sampler'")

        def __getitem__(self, i):
            return i

    with pytest.raises(TypeError, match="argument 'sampler'$"):
        DataLoader(Strange())


def test_protocols_of_python_are_not_disturbed():
    dataset = arrays(4).map(grow)
    for thing in (dataset, DataLoader(dataset), Dataset, lx):
        assert not hasattr(thing, "cache_me")
        assert not hasattr(thing, "__array__")
        assert getattr(thing, "prefetch_me", 3) == 3
        assert "snapshot" not in dir(thing)
        assert "from_tensor_slices" not in dir(thing)
    assert len(copy.copy(dataset)) == len(copy.deepcopy(dataset)) == 4
    assert len(pickle.loads(pickle.dumps(dataset))) == 4
    assert len(pickle.loads(pickle.dumps(DataLoader(dataset)))) == 4
    with pytest.raises(AttributeError, match="^a Dataset has no attribute 'shufle'$") as caught:
        dataset.shufle()
    assert (caught.value.name, caught.value.obj) == (
        "shufle",
        dataset,
    )  # "Did you mean: 'shuffle'?"


def test_signatures_are_kept():
    assert list(inspect.signature(Dataset.batch).parameters)[:3] == [
        "self", "batch_size", "drop_remainder",
    ]  # fmt: skip
    assert "Runs of" in Dataset.batch.__doc__


def test_the_tables_name_nothing_that_exists():
    for words, owner in [(hints.DATASET, Dataset), (hints.LOADER, DataLoader), (hints.MODULE, lx)]:
        assert [word for word in words if word in dir(owner)] == []


# A number alone, which tf.data takes for the size of a buffer


@pytest.mark.parametrize("number", [1000, 10_000, 60_000])
def test_a_buffer_size_warns(number):
    dataset = Dataset.range(8)
    message = rf"\.shuffle\({number}\) takes a seed and no buffer size: .*Write \.shuffle\(seed=0\)"
    with pytest.warns(LoaderxWarning, match=message) as caught:
        shuffled = dataset.shuffle(number)
    assert caught[0].filename == __file__
    assert f".shuffle(seed={number})" in str(caught[0].message)
    assert list(shuffled) == list(dataset.shuffle(seed=number))  # it is a seed all the same


@pytest.mark.parametrize(
    "shuffle",
    [
        lambda d: d.shuffle(999),
        lambda d: d.shuffle(seed=10_000),
        lambda d: d.shuffle(10_000, window=4),
        lambda d: d.shuffle(10_000, block=2),
        lambda d: DataLoader(d, batch_size=2, seed=10_000),
    ],
)
def test_what_is_meant_as_a_seed_does_not(shuffle):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shuffle(Dataset.range(8))


# What the first release had, and others have


def test_one_batch_of_all():
    with pytest.raises(
        ArgumentError, match=r"got -1\. For one batch of all records write \.batch\(len"
    ):
        Dataset.range(8).batch(-1)


def test_a_tuple_of_functions_for_transform():
    for given in ((np.negative, np.sqrt), [np.negative]):
        with pytest.raises(
            ArgumentTypeError, match=r"one function of a whole batch, got a (tuple|lis)"
        ):
            DataLoader(Dataset.range(8), batch_size=2, transform=given)


def test_seed_none_is_the_default():
    dataset = Dataset.range(50)
    one, other = (list(DataLoader(dataset, batch_size=5, **seed)) for seed in ({}, {"seed": None}))
    assert np.array_equal(one, other)
    seeded = list(DataLoader(dataset.seed(3), batch_size=5, seed=None))
    assert np.array_equal(seeded, list(DataLoader(dataset, batch_size=5, seed=3)))


def tokenizer(text):
    """As that of transformers does."""
    if not isinstance(text, (str, list)):
        raise ValueError(
            "text input must be of type `str` (single example), `list[str]` (batch or single "
            "pretokenized example) or `list[list[str]]` (batch of pretokenized examples)."
        )
    return {"ids": np.array([[len(each)] for each in text])}


@pytest.mark.parametrize("batched", [False, True])
def test_a_tokenizer_of_a_batch(batched):
    dataset = Dataset.from_source([{"text": "a" * n} for n in range(8)])
    dataset = dataset if batched else dataset.batch(4)
    failing = dataset.map(lambda batch: tokenizer(batch["text"]), batched=batched)
    with pytest.raises(
        RecordError, match=r'are an array: hand over a list, batch\["text"\]\.tolist'
    ):
        failing[0]
    right = dataset.map(lambda batch: tokenizer(batch["text"].tolist()), batched=batched)
    assert right[0]["ids"].ravel().tolist() == ([0] if batched else [0, 1, 2, 3])
