"""Pipelines in Grain's words, to be built with Grain or with `loaderx.compat.grain`.

``PIPELINES[name](grain)`` is an iterable; `tests/compat/grain/digests.json` has the digests of what
Grain 0.2.18 gives for it, and `tests/owners/grain/record.py` makes that file.  ``STATEFUL`` are
pipelines whose states are recorded at every step.
"""

from __future__ import annotations

import functools
import hashlib
import itertools

import numpy as np

SIZES = (1, 2, 3, 1_000, 32_767, 32_768, 65_536, 65_537, 1_000_000)
SEEDS = (0, 42, 2**32 - 1)
MOST = 300  # elements of a pipeline that are compared

PIPELINES = {}
STATEFUL = {}


def pipeline(function):
    PIPELINES[function.__name__] = function
    return function


def stateful(function):
    STATEFUL[function.__name__] = function
    return pipeline(function)


# Digests ---------------------------------------------------------------------------------------


def update(digest, value):
    if isinstance(value, dict):
        digest.update(f"dict{len(value)}".encode())
        for key in value:  # the order counts: `x, y = batch.values()`
            digest.update(repr(key).encode())
            update(digest, value[key])
    elif isinstance(value, (list, tuple)):
        digest.update(f"{type(value).__name__}{len(value)}".encode())
        for each in value:
            update(digest, each)
    elif isinstance(value, np.ndarray):
        digest.update(f"{value.dtype}{value.shape}".encode())
        digest.update(repr(value.tolist()).encode() if value.dtype == object else value.tobytes())
    else:
        digest.update(f"{type(value).__name__}{value!r}".encode())


def digest_of(elements):
    digest = hashlib.sha256()
    for element in itertools.islice(elements, MOST):
        update(digest, element)
        digest.update(b";")
    return digest.hexdigest()[:16]


# Functions of users ----------------------------------------------------------------------------


def plus_one(x):
    return x + 1


def is_even(x):
    return x % 2 == 0


def with_noise(x, rng):
    return x + rng.integers(1_000)


def draw(x, rng):
    return {"x": np.float32(x) + rng.random(3, dtype=np.float32), "n": rng.integers(1 << 40)}


def tokens(i):
    """A record of variable length that its number determines."""
    length = 1 + (i * 7919) % 23
    return {"tokens": np.arange(i, i + length, dtype=np.int32)}


def pairs(i):
    inputs, targets = 1 + (i * 31) % 11, 1 + (i * 17) % 7
    return {
        "inputs": np.arange(inputs, dtype=np.int64) + i,
        "targets": np.full((targets, 2), i, np.float32),
    }


def with_meta(i):
    return {**pairs(i), "epoch": np.array([i // 10], np.int32), "name": f"record {i}"}


def nested(i):
    return {"a": [i, float(i)], "b": (np.full(2, i, np.uint8), {"c": np.int16(i)})}


# By index --------------------------------------------------------------------------------------


def spread(length):
    """Indices in two epochs: the first ones, and others far apart."""
    far = [2 * length * k // 97 for k in range(97)]
    return sorted({*range(min(2 * length, 150)), *far, length - 1, length, 2 * length - 1})


def shuffled(grain, size, seed):
    ds = grain.MapDataset.range(size).shuffle(seed=seed)
    return [ds[i] for i in spread(size)]


for _size, _seed in itertools.product(SIZES, SEEDS):
    PIPELINES[f"shuffle_{_size}_{_seed}"] = functools.partial(shuffled, size=_size, seed=_seed)


def shuffled_loader(grain, size, seed):
    sampler = grain.IndexSampler(
        num_records=size, shuffle=True, seed=seed, num_epochs=2, shard_options=grain.NoSharding()
    )
    loader = grain.DataLoader(
        data_source=range(size),
        sampler=sampler,
        operations=[grain.Batch(batch_size=7)],
        read_options=grain.ReadOptions(num_threads=0),
    )
    return itertools.islice(loader, 40)


for _size in SIZES:
    PIPELINES[f"loader_{_size}"] = functools.partial(shuffled_loader, size=_size, seed=7)


@pipeline
def repeat_then_shuffle(grain):
    ds = grain.MapDataset.range(50).shuffle(seed=3).repeat(4)
    return [ds[i] for i in range(len(ds))]


@pipeline
def shuffle_of_repeat(grain):
    ds = grain.MapDataset.range(50).repeat(4).shuffle(seed=3)
    return [ds[i] for i in range(len(ds))]


@pipeline
def slices(grain):
    ds = grain.MapDataset.range(3, 103, 2).shuffle(seed=1)[5:45:3].repeat(2)
    return [ds[i] for i in range(len(ds))]


@pipeline
def shard_by_slice(grain):
    ds = grain.MapDataset.range(1000).seed(5).shuffle()[2::5].batch(6, drop_remainder=True)
    return [ds[i] for i in range(2 * len(ds))]


@pipeline
def default_seeds(grain):
    ds = grain.MapDataset.range(30).seed(9).map(plus_one).shuffle().random_map(with_noise)
    ds = ds.map(plus_one).random_map(with_noise).repeat(2)
    return [ds[i] for i in range(len(ds))]


@pipeline
def repeat_without_new_seeds(grain):
    ds = grain.MapDataset.range(20).seed(9).shuffle().random_map(draw)
    ds = ds.repeat(3, reseed_each_epoch=False)
    return [ds[i] for i in range(len(ds))]


@pipeline
def mix_of_weights(grain):
    parts = [grain.MapDataset.range(k * 1000, k * 1000 + 60).shuffle(seed=k) for k in range(3)]
    ds = grain.MapDataset.mix(parts, weights=[0.5, 0.3, 0.2])
    return [ds[i] for i in range(2 * len(ds))]


@pipeline
def mix_of_repeated(grain):
    parts = [grain.MapDataset.range(k * 1000, k * 1000 + 7 + k).repeat() for k in range(4)]
    ds = grain.MapDataset.mix(parts, weights=[1, 2, 3, 4]).map(plus_one)
    return [ds[i] for i in range(250)]


@pipeline
def mix_without_weights(grain):
    parts = [grain.MapDataset.range(10), grain.MapDataset.range(100, 120)]
    ds = grain.MapDataset.mix(parts)
    return [ds[i] for i in range(len(ds) * 3)]


@pipeline
def concatenated(grain):
    parts = [grain.MapDataset.range(k * 100, k * 100 + 5 + k) for k in range(3)]
    ds = grain.MapDataset.concatenate(parts).shuffle(seed=2)
    return [ds[i] for i in range(2 * len(ds))]


@pipeline
def window_shuffle_by_index(grain):
    ds = grain.experimental.WindowShuffleMapDataset(
        grain.MapDataset.range(100), window_size=16, seed=4
    )
    return [ds[i] for i in range(len(ds))]


@pipeline
def zipped(grain):
    left = grain.MapDataset.range(20).shuffle(seed=1)
    right = grain.MapDataset.range(20).map(plus_one)
    ds = grain.experimental.ZipMapDataset([left, right])
    return [ds[i] for i in range(len(ds))]


@pipeline
def nested_batches(grain):
    ds = grain.MapDataset.range(24).map(nested).batch(2).batch(3)
    return [ds[i] for i in range(len(ds))]


@pipeline
def map_with_index(grain):
    ds = grain.MapDataset.range(40).shuffle(seed=1).map_with_index(lambda i, x: (i, x)).repeat(2)
    return [ds[i] for i in range(len(ds))]


@pipeline
def filtered_by_index(grain):
    ds = grain.MapDataset.range(40).shuffle(seed=1).filter(is_even).map(plus_one)
    return [ds[i] for i in range(len(ds))]


# In order --------------------------------------------------------------------------------------


@stateful
def map_and_batch(grain):
    ds = grain.MapDataset.range(60).seed(1).shuffle().random_map(draw).repeat(2).batch(8)
    return ds.to_iter_dataset()


@stateful
def filter_and_batch(grain):
    ds = grain.MapDataset.range(100).shuffle(seed=5).filter(is_even)
    return ds.to_iter_dataset().batch(7, drop_remainder=True)


@stateful
def random_map_in_order(grain):
    ds = grain.MapDataset.range(60).shuffle(seed=5).to_iter_dataset().filter(is_even).seed(3)
    return ds.random_map(with_noise).batch(4)


@stateful
def mix_in_order(grain):
    parts = [
        grain.MapDataset.range(k * 1000, k * 1000 + 40).shuffle(seed=k).to_iter_dataset()
        for k in range(3)
    ]
    return grain.IterDataset.mix(parts, weights=[0.5, 0.25, 0.25]).batch(3)


@stateful
def window_shuffle_in_order(grain):
    ds = grain.MapDataset.range(70).to_iter_dataset()
    ds = grain.experimental.WindowShuffleIterDataset(ds, window_size=12, seed=8)
    return ds.map(plus_one)


@stateful
def interleaved(grain):
    files = grain.MapDataset.range(6).map(
        lambda k: grain.MapDataset.range(k * 100, k * 100 + 3 + k).to_iter_dataset()
    )
    return grain.experimental.InterleaveIterDataset(files, cycle_length=3).batch(2)


@stateful
def first_fit(grain):
    ds = grain.MapDataset.range(150).shuffle(seed=2).map(tokens).to_iter_dataset()
    ds = grain.experimental.FirstFitPackIterDataset(
        ds, length_struct={"tokens": 64}, num_packing_bins=6, seed=4
    )
    return ds.batch(3)


@stateful
def best_fit(grain):
    ds = grain.MapDataset.range(150).shuffle(seed=2).map(pairs).to_iter_dataset()
    return grain.experimental.BestFitPackIterDataset(
        ds,
        length_struct={"inputs": 32, "targets": 24},
        num_packing_bins=5,
        max_sequences_per_bin=6,
        pack_alignment_struct={"inputs": 4, "targets": 1},
        padding_struct={"inputs": -1, "targets": 0.5},
    )


@stateful
def concat_then_split(grain):
    ds = grain.MapDataset.range(80).shuffle(seed=2).map(tokens).to_iter_dataset()
    return grain.experimental.ConcatThenSplitIterDataset(ds, length_struct={"tokens": 32})


@stateful
def mixed_and_packed(grain):
    parts = [
        grain.MapDataset.range(k * 500, k * 500 + 60).shuffle(seed=k).map(tokens).repeat()
        for k in range(2)
    ]
    ds = grain.MapDataset.mix(parts, weights=[2, 1])[:150].to_iter_dataset()
    ds = grain.experimental.FirstFitPackIterDataset(
        ds, length_struct={"tokens": 48}, num_packing_bins=4, shuffle_bins=False
    )
    return ds.batch(2, drop_remainder=True)


@pipeline
def best_fit_of_tokens(grain):
    ds = grain.MapDataset.range(400).shuffle(seed=2).map(tokens).to_iter_dataset()
    return grain.experimental.BestFitPackIterDataset(
        ds, length_struct={"tokens": 48}, num_packing_bins=16, seed=1
    )


@pipeline
def first_fit_of_pairs(grain):
    ds = grain.MapDataset.range(300).shuffle(seed=6).map(pairs).to_iter_dataset()
    return grain.experimental.FirstFitPackIterDataset(
        ds, length_struct={"inputs": 32, "targets": 16}, num_packing_bins=8
    )


@pipeline
def packed_with_meta_features(grain):
    ds = grain.MapDataset.range(90).shuffle(seed=6).map(with_meta).to_iter_dataset()
    return grain.experimental.FirstFitPackIterDataset(
        ds,
        length_struct={"inputs": 40, "targets": 30, "epoch": 9},
        num_packing_bins=4,
        meta_features=["epoch", "name"],
        shuffle_bins_group_by_feature="epoch",
    )


@pipeline
def concat_then_split_with_bos(grain):
    names = ("inputs", "inputs_2")
    ds = grain.MapDataset.range(80).map(tokens)
    ds = ds.map(lambda r: dict.fromkeys(names, r["tokens"])).to_iter_dataset()
    return grain.experimental.ConcatThenSplitIterDataset(
        ds,
        length_struct={"inputs": 20, "inputs_2": 20},
        split_full_length_features=False,
        bos_handling=grain.experimental.BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS,
        bos_features=("inputs",),
        bos_token_id=-7,
    )


@pipeline
def concat_then_split_of_two_lengths(grain):
    ds = grain.MapDataset.range(80).map(
        lambda i: {"a": np.arange(1 + i % 9), "b": np.arange(1 + i % 5), "meta": np.array([i])}
    )
    return grain.experimental.ConcatThenSplitIterDataset(
        ds.to_iter_dataset(),
        length_struct={"a": 16, "b": 16, "meta": 16},
        meta_features=("meta",),
    )


@pipeline
def mix_by_name(grain):
    parts = {
        name: grain.MapDataset.range(k * 100, k * 100 + 30).to_iter_dataset()
        for k, name in enumerate(("web", "code"))
    }
    return grain.IterDataset.mix(parts, weights={"web": 0.7, "code": 0.3})


@pipeline
def limit_and_repeat(grain):
    ds = grain.MapDataset.range(10).shuffle(seed=1).to_iter_dataset().filter(is_even)
    ds = grain.experimental.RepeatIterDataset(ds, num_epochs=4)
    return grain.experimental.LimitIterDataset(ds, 17)


@pipeline
def padded(grain):
    pad = functools.partial(grain.experimental.batch_and_pad, batch_size=8, pad_value=-1)
    return grain.MapDataset.range(21).to_iter_dataset().batch(8, batch_fn=pad)


@pipeline
def flat_mapped(grain):
    class Copies(grain.experimental.FlatMapTransform):
        max_fan_out = 3

        def flat_map(self, element):
            return [element * 10 + k for k in range(element % 4)]

    return grain.experimental.FlatMapIterDataset(
        grain.MapDataset.range(30).shuffle(seed=1).to_iter_dataset(), Copies()
    )


# Loaders ---------------------------------------------------------------------------------------


def loader(grain, operations, *, size=100, seed=11, shard=(0, 1), epochs=2, drop=False):
    shard_options = grain.ShardOptions(*shard, drop_remainder=drop)
    sampler = grain.IndexSampler(
        num_records=size,
        shard_options=shard_options,
        shuffle=True,
        num_epochs=epochs,
        seed=seed,
    )
    return grain.DataLoader(
        data_source=range(size),
        sampler=sampler,
        operations=operations,
        worker_count=0,
        shard_options=shard_options,
        read_options=grain.ReadOptions(num_threads=0),
    )


def transforms(grain):
    class PlusOne(grain.MapTransform):
        def map(self, element):
            return element + 1

    class Noise(grain.RandomMapTransform):
        def random_map(self, element, rng):
            return element * 1000 + rng.integers(1000)

    class Even(grain.FilterTransform):
        def filter(self, element):
            return element % 2 == 0

    return PlusOne(), Noise(), Even()


@pipeline
def loader_of_random_maps(grain):
    one, noise, _ = transforms(grain)
    return loader(grain, [one, noise, noise, grain.Batch(batch_size=8)])


@pipeline
def loader_of_a_shard(grain):
    one, noise, _ = transforms(grain)
    return loader(grain, [one, noise, grain.Batch(batch_size=4)], shard=(2, 3), size=101)


@pipeline
def loader_without_a_remainder(grain):
    one, _, _ = transforms(grain)
    return loader(
        grain, [one, grain.Batch(8, drop_remainder=True), one], shard=(1, 3), size=101, drop=True
    )


@pipeline
def loader_with_a_filter(grain):
    one, noise, even = transforms(grain)
    return loader(grain, [one, even, noise, grain.Batch(batch_size=8), one])


@pipeline
def loader_with_a_random_map_after_batch(grain):
    one, noise, _ = transforms(grain)
    return loader(grain, [noise, grain.Batch(batch_size=8), noise, one])


@pipeline
def loader_of_records(grain):
    one, noise, _ = transforms(grain)
    return loader(grain, [one, noise])


@pipeline
def loader_of_old_operations(grain):
    operations = [
        grain.MapOperation(map_function=plus_one),
        grain.FilterOperation(condition_function=is_even),
        grain.BatchOperation(batch_size=5),
    ]
    return loader(grain, operations, epochs=1)


@pipeline
def loader_in_order(grain):
    _, noise, _ = transforms(grain)
    sampler = grain.SequentialSampler(
        num_records=50, shard_options=grain.ShardOptions(1, 4), seed=3
    )
    return grain.DataLoader(
        data_source=range(50), sampler=sampler, operations=[noise, grain.Batch(4)]
    )


@pipeline
def loaded(grain):
    one, noise, _ = transforms(grain)
    return grain.load(
        range(60), num_epochs=2, shuffle=True, seed=4, transformations=[one, noise], batch_size=9
    )


def loader_states(grain):
    """Loaders whose states are recorded, too: they are bytes."""
    one, noise, even = transforms(grain)
    yield "maps", loader(grain, [one, noise, grain.Batch(8)], size=50, shard=(1, 2))
    yield "filter", loader(grain, [even, noise, grain.Batch(3)], size=40, epochs=1)
    yield "records", loader(grain, [one, noise], size=20, epochs=1)
