"""Chains that together use every stage, and every option of every stage, of `Dataset`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from loaderx import Dataset, image, ramp
from loaderx.sources import Tokens
from tests.pinned.inputs import (
    Batching,
    Choosing,
    Chunked,
    Copying,
    Cursor,
    Doubling,
    Drawing,
    DrawTogether,
    Gathering,
    Numbering,
    OddFirst,
    Point,
    Sample,
    Several,
    Single,
    Stored,
    Ticking,
    arrays,
    copies,
    documents,
    double,
    draw,
    draw_globally,
    draw_of_window,
    draw_rows,
    fails,
    fails_every,
    halves,
    in_part,
    is_drawn,
    is_even,
    is_long,
    lines,
    number,
    numbered,
    objects,
    pairs_of_texts,
    replace_value_errors,
    shards,
    shift,
    to_lists,
    total,
    without_mask,
    write_url,
    write_versions,
)

CHAINS: dict[str, Callable[[Path], Dataset[Any]]] = {}
"""By name; each is given the folder that `inputs.write_files` has filled."""


def chain(make: Callable[..., Dataset[Any]]) -> Callable[..., Dataset[Any]]:
    takes_folder = bool(inspect.signature(make).parameters)
    CHAINS[make.__name__] = make if takes_folder else lambda folder: make()
    return make


# Sources --------------------------------------------------------------------------------------


@chain
def source_named_arrays():
    return arrays(30).batch(4)


@chain
def source_tuple_of_arrays():
    return Dataset.from_arrays(
        np.arange(24, dtype=np.int16), np.arange(48, dtype=np.uint8).reshape(24, 2)
    ).batch(4)


@chain
def source_tree_of_arrays():
    x = np.arange(40, dtype=np.int32)
    tree = {"a": {"b": x, "c": (x * 2, [x * 3, x[:, None] * 4])}, "p": Point(x + 1, None)}
    return Dataset.from_arrays(tree).shuffle(5).batch(4)


@chain
def source_dtypes():
    n = np.arange(21)
    return Dataset.from_arrays(
        b=n % 3 == 0,
        u=n.astype(np.uint8),
        h=n.astype(np.float16),
        d=n.astype(np.float64),
        c=n.astype(np.complex64),
        t=n.astype("datetime64[s]"),
        s=np.array([f"s{i}" * (i % 3) for i in n]),
        x=np.arange(21 * 6, dtype=np.int64).reshape(21, 2, 3),
    ).batch(4)


@chain
def source_records_of_arrays():
    return arrays(9)


@chain
def source_one_array():
    return Dataset.from_source(np.arange(40, dtype=np.int32).reshape(20, 2)).batch(4)


@chain
def source_range():
    return Dataset.range(23).batch(4)


@chain
def source_range_with_steps():
    return Dataset.range(100, 20, -3).shuffle(2).batch(4).repeat()


@chain
def source_list_of_dicts():
    return objects(20).batch(4)


@chain
def source_list_of_trees():
    made = []
    for i in range(18):
        point = Point(i, (np.int16(i), None))
        made.append({"s": Sample(point, i / 2), "row": [i, i + 1], "text": "ab" * (i % 3)})
    return Dataset.from_source(made).shuffle(3).batch(4)


@chain
def source_list_of_numbers():
    return Dataset.from_source([i * i for i in range(18)]).batch(4)


@chain
def source_list_of_texts():
    return Dataset.from_source([f"t{i}" for i in range(9)]).shuffle(1)


@chain
def source_object():
    return Dataset.from_source(Single(20), thread_safe=False).shuffle(3).batch(4)


@chain
def source_object_for_threads():
    return Dataset.from_source(Single(20), thread_safe=True).map(double).batch(4).repeat()


@chain
def source_object_that_reads_several():
    return Dataset.from_source(Several(20), thread_safe=True).shuffle(4).batch(4)


@chain
def source_object_that_gathers():
    return Dataset.from_source(Gathering(20)).shuffle(6).batch(4)


@chain
def source_tokens(folder):
    return Dataset.from_source(Tokens(folder / "tokens.bin", 8)).shuffle(4).batch(4)


@chain
def source_tokens_with_targets(folder):
    tokens = Tokens(folder / "tokens.bin", 8, np.uint16, targets=True)
    return Dataset.from_source(tokens).shuffle(4).batch(4).repeat()


@chain
def source_tokens_that_overlap(folder):
    return Dataset.from_source(Tokens(folder / "tokens.npy", 6, stride=4, targets=True)).batch(4)


@chain
def source_tokens_of_two_files(folder):
    files = [folder / "tokens.bin", folder / "more.bin"]
    return Dataset.from_source(Tokens(files, 10, targets=True)).shuffle(6).batch(4)


@chain
def source_file(folder):
    return Dataset.open(folder / "plain.npz").shuffle(1).batch(3)


@chain
def source_file_keys(folder):
    return Dataset.open(folder / "packed.npz", columns=["z", "x"]).batch(3)


@chain
def source_file_options(folder):
    options = {"format": "npy", "decode": False, "fill": {}, "cache": False}
    return Dataset.open(folder / "plain.npz", split="[1:]", **options).shuffle(2).batch(3)


@chain
def source_missing(folder):
    rows = [{"x": n if n % 3 else None, "y": n / 4 if n % 4 else None} for n in range(20)]
    texts = [{**row, "t": "cab"[n % 3]} if n % 5 else row for n, row in enumerate(rows)]
    (folder / "gaps.jsonl").write_text("\n".join(map(json.dumps, texts)))
    words = {"x": "valid", "y": "nan", "t": "valid"}
    types = {"t": "category"}
    opened = Dataset.open(folder / "gaps.jsonl", missing=words, types=types, cache=False)
    return opened.shuffle(5).batch(3)


@chain
def source_table():
    import pyarrow as pa

    columns = {"x": [*range(18), None, None], "y": [None, 0.5] * 10, "t": list("cabd") * 5}
    options = {"fill": {"x": -1}, "missing": "valid", "types": {"t": "category"}}
    return Dataset.from_source(pa.table(columns), **options).shuffle(6).batch(3)


@chain
def source_folder(folder):
    return Dataset.open(folder / "columns").batch(4, drop_remainder=True)


@chain
def source_saved(folder):
    records = objects(20).map(lambda r: {"of": r, "raw": bytes([r["x"]])})
    for shard in ((0, 2), (1, 2)):
        records.save(
            folder / "saved",
            part_bytes=99,
            images=["raw"],
            engine="inline",
            num_workers=1,
            shard=shard,
        )
    return Dataset.open(folder / "saved", decode=False).shuffle(4).batch(3)


@chain
def source_version(folder):
    place, cache = write_versions(folder)
    return Dataset.open(place, version=2, cache=cache).shuffle(3).batch(4)


@chain
def source_url(folder):
    url = write_url(folder)
    options = {"use_listings_cache": False}
    return (
        Dataset.open(url, storage_options=options, cache=folder / "downloads").shuffle(2).batch(4)
    )


@chain
def source_path(folder):
    return Dataset(folder / "plain.npz", "x", "y", more="z").shuffle(1).batch(3)


@chain
def iterable_function():
    return Dataset.from_iterable(lines).batch(4)


@chain
def iterable_list():
    return Dataset.from_iterable([{"x": np.int64(i)} for i in range(17)]).batch(3)


@chain
def iterable_records():
    return Dataset.from_iterable(lines).map(double).filter(partial(in_part, 3))


@chain
def iterable_shards():
    return Dataset.from_iterable(shards).repeat().batch(8, lanes=4)


@chain
def iterable_shards_that_end():
    return Dataset.from_iterable(shards).random_map(draw).batch(4, lanes=2)


@chain
def iterable_with_a_state():
    return Dataset.from_iterable(Cursor(31)).batch(4)


@chain
def iterable_with_a_state_repeated():
    return Dataset.from_iterable(Cursor(11)).shuffle(2, window=4).repeat().batch(4)


@chain
def iterable_whose_iterator_has_a_state():
    return Dataset.from_iterable(Ticking).repeat().batch(8, lanes=4)


# Orders ---------------------------------------------------------------------------------------


@chain
def shuffle_without_seed():
    return arrays(30).shuffle().batch(4).repeat()


@chain
def shuffle_records():
    return arrays(11).shuffle(9)


@chain
def shuffle_twice():
    return arrays(40).shuffle(1).map(double).shuffle(1).batch(8)


@chain
def sample_by_weight():
    weights = np.arange(40) % 5
    return arrays(40).sample(weights, 60, seed=3).random_map(draw).batch(4).repeat()


@chain
def sample_batches():
    return arrays(40).repeat(2).batch(4).sample(np.arange(20) + 0.5).map(double)


@chain
def sample_into_a_stream():
    drawn = objects(30).sample(1 / np.arange(1, 31)).random_keys()
    return drawn.filter(partial(in_part, 3)).repeat().batch(8, lanes=2)


@chain
def shuffle_batches():
    return arrays(40).batch(4).shuffle(3).repeat()


@chain
def shuffle_short_batches():
    return arrays(30).batch(4).shuffle(3)


@chain
def shuffle_1_024():
    return Dataset.range(1024).shuffle(1).batch(128)


@chain
def shuffle_1_025():
    return Dataset.range(1025).shuffle(1).batch(128, drop_remainder=True)


@chain
def shuffle_2_000_in_several_epochs():
    return Dataset.range(2000).shuffle(1).repeat(3).shuffle(2).batch(500)


@chain
def shuffle_65_537():
    return Dataset.range(65_537).shuffle(2).batch(8192, drop_remainder=True).repeat()


@chain
def shuffle_100_000():
    return Dataset.range(100_000).shuffle(2).repeat().batch(16_384)


@chain
def shuffle_33_million():
    return Dataset.range(33_000_000).shuffle(3).batch(64).repeat()


@chain
def shuffle_a_trillion():
    return Dataset.range(10**12).shuffle(4).random_map(lambda x, rng: x).batch(16)


@chain
def shuffle_blocks():
    return arrays(43).shuffle(3, block=4).random_map(draw).batch(4).repeat()


@chain
def shuffle_blocks_and_windows():
    return arrays(43).shuffle(3, block=4, window=12).repeat().batch(4)


@chain
def shuffle_blocks_of_batches():
    return arrays(86).batch(4).shuffle(2, block=3, window=6).repeat()


@chain
def shuffle_many_blocks():
    records = Dataset.range(10**12 + 77).shuffle(5, block=256, window=256 * 64)
    return records.random_map(lambda x, rng: x).batch(16)


@chain
def shuffle_blocks_of_the_source():
    parts = Dataset.from_source(Chunked([9, 4, 0, 11, 9]))
    return parts.shuffle(4, block="source", window=10).batch(4).repeat()


@chain
def shuffle_chunks():
    records = Dataset.from_source(Stored([9, 4, 11, 9, 7])).shuffle(4, block="source", window=12)
    return records.random_keys().batch(4).repeat()


@chain
def shuffle_chunks_of_a_stream():
    records = Dataset.from_source(Stored([9, 4, 11, 9, 7])).shuffle(4, block="source", window=12)
    return records.filter(partial(in_part, 3)).repeat().batch(4, lanes=2)


@chain
def shuffle_chunks_below_a_window():
    records = Dataset.from_source(Stored([20, 3, 3, 17, 8, 9])).shuffle(
        4, block="source", window=24
    )
    return records.filter(partial(in_part, 3)).shuffle(2, window=6).repeat().batch(4)


@chain
def shuffle_window():
    return arrays(40).shuffle(3, window=7).batch(4).repeat()


@chain
def shuffle_large_window():
    return Dataset.range(20_000).shuffle(window=3000).batch(2500, drop_remainder=True).repeat()


@chain
def shuffle_window_of_endless():
    return arrays(10).repeat().shuffle(2, window=8).batch(4)


@chain
def shuffle_window_of_batches():
    return arrays(40).batch(4).shuffle(2, window=3).repeat()


@chain
def shuffle_window_over_shuffle():
    return objects(25).shuffle(1).shuffle(1, window=6).batch(5)


@chain
def split_first():
    return arrays(40).split(0.7, 0.2, 0.1, seed=3)[0].shuffle(1).batch(4).repeat()


@chain
def split_last():
    return arrays(40).seed(8).split(0.4, 0.6)[1].batch(4)


@chain
def split_by_count():
    return arrays(40).split(25, 15, seed=3)[1].shuffle(1).batch(4).repeat()


@chain
def split_by_class():
    return arrays(40).split(0.7, 0.3, stratify=np.arange(40) % 3)[0].random_map(draw).batch(6)


@chain
def split_indices_of_folds():
    folds = arrays(40).split_indices(*[0.25] * 4, seed=1, stratify=np.arange(40) % 2)
    return arrays(40)[np.concatenate(folds[1:])].batch(7)


@chain
def split_indices_of_groups():
    groups = np.arange(40) // 7
    _, held_out = arrays(40).split_indices(0.5, 0.5, shuffle=False, groups=groups)
    return arrays(40)[held_out].batch(3)


@chain
def split_by_group():
    return arrays(40).split(0.6, 0.4, seed=2, groups=np.arange(40) // 3)[1].shuffle(1).batch(4)


@chain
def window_of_records():
    made = arrays(40).window(3, stride=2, gap=1).shuffle(2).random_map(draw_of_window)
    return made.batch(4).repeat()


@chain
def window_of_series():
    return arrays(40).window(4, groups=np.arange(40) // 9).batch(6)


@chain
def split_in_order():
    return arrays(40).split(0.25, 0.75, shuffle=False)[1].random_map(draw).batch(6)


@chain
def take_and_skip():
    return arrays(60).skip(9).take(40).shuffle(2).batch(8)


@chain
def take_of_endless():
    return arrays(9).shuffle(1).repeat().batch(4).take(8)


@chain
def skip_of_endless():
    return arrays(9).shuffle(1).repeat().skip(13).batch(4)


@chain
def take_of_batches_repeated():
    return arrays(40).shuffle(1).batch(4).take(5).repeat()


@chain
def slice_with_steps():
    return arrays(60)[3:57:2].shuffle(4).batch(4)


@chain
def slice_backwards():
    return arrays(30)[::-2].batch(3)


@chain
def slice_of_endless():
    return arrays(10).shuffle(1).repeat()[5::3].batch(4)


@chain
def slice_of_batches():
    return arrays(41).batch(4)[1:9].repeat()


@chain
def pick():
    return arrays(30)[[5, 2, -1, 7, 11, 13, 0, 1, 20, 21, 22, 23]].shuffle(1).batch(2)


@chain
def pick_again():
    picked = arrays(10)[np.array([3, 3, 1, 3, 9, 9, 0, 5, 1, 3, 3, 2])]
    return picked.random_map(draw).batch(2).repeat()


@chain
def pick_mask():
    return arrays(30)[np.arange(30) % 3 == 1].random_keys().batch(2)


@chain
def pick_batches():
    return arrays(30).shuffle(1).batch(3)[[0, 4, 4, 2, 9, 0, 4]].random_map(draw_rows)


@chain
def repeat_finite():
    return arrays(10).shuffle(1).repeat(3).batch(4)


@chain
def repeat_endless_across_batches():
    return arrays(10).shuffle(1).random_map(draw).repeat().batch(4)


@chain
def repeat_endless_batches():
    return objects(10).shuffle(1).random_map(draw).batch(4).repeat()


@chain
def repeat_nested():
    return arrays(5).shuffle(1).repeat(2).shuffle(2).random_map(draw).repeat(2).batch(4).repeat()


@chain
def repeat_deep():
    inner = arrays(3).random_map(draw).repeat(2)[[0, 5, 5, 1]].repeat(2).skip(1)
    return inner.shuffle(4).repeat(3).take(20).batch(3)


@chain
def repeat_once():
    return arrays(20).shuffle(1).repeat(1).random_map(draw).batch(4)


# Functions ------------------------------------------------------------------------------------


@chain
def map_records():
    return arrays(20).map(double).batch(4)


@chain
def map_runs():
    return objects(20).map(double, batched=True).shuffle(1).map(partial(shift, 5)).batch(4)


@chain
def map_batches():
    return arrays(20).shuffle(1).batch(4).map(double).repeat()


@chain
def map_runs_to_lists():
    texts = Dataset.from_arrays(text=["a" * (i % 5) + "b" for i in range(18)])
    return texts.map(to_lists, batched=True).batch(4, pad_to={"t": 6})


@chain
def map_changes_the_tree():
    return arrays(20).map(lambda r: (r["x"], [r["y"], {"z": r["y"] * np.float32(2)}])).batch(4)


@chain
def map_over_large_units():
    return Dataset.range(3000).map(lambda x: x * 3, batched=True).batch(300)


@chain
def map_with_index_of_records():
    return arrays(20).shuffle(1).map_with_index(number).batch(4).repeat()


@chain
def map_with_index_over_repeat():
    return objects(7).repeat().map_with_index(number).shuffle(1, window=5).batch(4)


@chain
def map_with_index_of_batches():
    return arrays(32).shuffle(1).batch(4).map_with_index(number)


@chain
def random_map_records():
    return arrays(20).random_map(draw).shuffle(2).batch(4).repeat()


@chain
def random_map_seeds():
    return objects(20).random_map(draw, seed=4).random_map(draw, seed=4).batch(4)


@chain
def random_map_runs():
    return arrays(20).shuffle(2).random_map(draw_rows, batched=True, seed=7).batch(4)


@chain
def random_map_runs_of_objects():
    return objects(20).map(double).random_map(draw_rows, batched=True).batch(4).repeat()


@chain
def random_map_batches():
    return arrays(20).shuffle(2).batch(4).random_map(draw_rows).repeat()


@chain
def random_map_with_global_generators():
    return arrays(20).shuffle(2).random_map(draw_globally, seed_globals=True, seed=3).batch(4)


@chain
def random_map_images():
    images = np.arange(12 * 10 * 8 * 3).astype(np.uint8).reshape(12, 10, 8, 3)
    boxes = np.array([[[1, 2, 5, 8], [0, 0, 3, 3]]] * 12, np.int32)
    photos = Dataset.from_arrays(
        image=images, mask=images[..., 0] // 9, boxes=boxes, id=boxes[..., 0]
    )
    pad = image.random_pad_and_crop(3, masks="mask", boxes="boxes", per_box="id", min_area=0.4)
    moved = photos.shuffle(1).random_map(pad).batch(3, pad_to={"boxes": 2, "id": 2})
    flip = image.random_flip_left_right(masks="mask")
    return moved.random_map(flip).random_map(image.random_erasing(value=7)).repeat()


@chain
def random_keys_of_records():
    return arrays(20).random_keys().shuffle(1).random_keys("other", seed=5).batch(4).repeat()


@chain
def random_keys_of_batches():
    return arrays(20).shuffle(1).batch(4).random_keys(name="k").repeat()


@chain
def seed_below_and_above():
    return arrays(20).seed(3).shuffle().random_map(draw).batch(4).seed(6).random_keys().repeat()


@chain
def seed_of_a_component():
    parts = [arrays(20).shuffle().seed(3), arrays(20, 100).shuffle()]
    return Dataset.mix(parts).random_map(draw).batch(4).seed(9)


@chain
def apply_list():
    records = arrays(26).apply([double, Doubling(), Drawing(), Numbering()])
    return records.apply(Batching())


@chain
def apply_to_a_stream():
    return arrays(26).apply([Choosing(), Copying(), Drawing(), Batching(), Doubling()])


@chain
def several_seeds_deep():
    left = objects(24).shuffle().random_map(draw, seed=1).shuffle(5, window=6)
    return left.random_keys().batch(4).random_map(draw_rows).seed(11).repeat()


@chain
def cache_in_memory():
    return arrays(30).map(double).cache().shuffle(3).random_map(draw).batch(4).repeat(2)


@chain
def cache_in_a_folder(folder):
    kept = arrays(30).map(double).cache(folder / "kept")
    return kept.shuffle(4).random_map(draw).batch(4).repeat(2)


# Joins ----------------------------------------------------------------------------------------


@chain
def zip_of_two():
    return Dataset.zip(arrays(20).shuffle(1), arrays(20, 100).shuffle(2)).batch(4).repeat()


@chain
def zip_of_a_list():
    return Dataset.zip([arrays(20), objects(20, 50).random_map(draw)]).batch(4)


@chain
def zip_by_name():
    left, right = arrays(20).repeat(2).shuffle(1), Dataset.range(40)
    return Dataset.zip({"left": left, "right": right}).shuffle(2).batch(4)


@chain
def zip_of_batches():
    parts = [arrays(22).shuffle(1).batch(4), arrays(22, 100).random_map(draw).batch(4)]
    return Dataset.zip(parts).repeat()


@chain
def zip_of_endless():
    left, right = arrays(7).shuffle(1).repeat(), arrays(5, 100).shuffle(2).repeat()
    return Dataset.zip(left, right).batch(4)


@chain
def concatenate_two():
    parts = arrays(13).shuffle(1), arrays(11, 100).random_map(draw)
    return Dataset.concatenate(*parts).shuffle(2).batch(4).repeat()


@chain
def concatenate_a_list():
    parts = [arrays(5), arrays(5).shuffle(1).repeat(2), objects(6, 100)]
    return Dataset.concatenate(parts).random_map(draw).batch(3)


@chain
def concatenate_batches():
    parts = [arrays(10).batch(4), arrays(10, 50).shuffle(1).batch(4)]
    return Dataset.concatenate(parts).random_map(draw_rows).repeat(2)


@chain
def concatenate_with_an_endless_end():
    return Dataset.concatenate(arrays(6), arrays(5, 50).shuffle(1).repeat()).batch(4)


@chain
def mix_even():
    return Dataset.mix([arrays(16), arrays(40, 100).shuffle(1)]).batch(4)


@chain
def mix_weighted():
    parts = [arrays(30).shuffle(1), objects(9, 100), arrays(50, 200).random_map(draw)]
    return Dataset.mix(parts, weights=[0.5, 0.125, 0.375]).batch(8)


@chain
def mix_repeat():
    parts = [arrays(5).shuffle(1).random_map(draw), arrays(16, 100).shuffle(2)]
    return Dataset.mix(parts, [1, 2], stop="repeat").batch(4).repeat()


@chain
def mix_all_exhausted():
    parts = [arrays(21).shuffle(1), arrays(4, 100), objects(7, 200).random_map(draw)]
    return Dataset.mix(parts, [3, 1, 1], stop="all_exhausted").batch(4).repeat()


@chain
def mix_planned():
    parts = {
        "a": arrays(16).shuffle(1).repeat(),
        "b": arrays(40, 100).repeat(),
        "c": arrays(7, 200),
    }
    weights = [
        (0, {"a": 2, "b": 1}),
        ramp(7, 30, to={"a": 1, "b": 3}, shape="cosine"),
        (41, {"b": 1, "c": 1}),
        ramp(50, 70, to={"a": 1, "b": 1}),
    ]
    mixed = Dataset.mix(parts, weights, part="part")
    return mixed.take(mixed.plan(80).position).random_map(draw).batch(4).repeat()


@chain
def mix_with_caps():
    parts = {"a": arrays(30).shuffle(1).repeat(), "b": arrays(5, 100).shuffle(2).random_map(draw)}
    return Dataset.mix(parts, [2, 1], epochs={"b": 3}, at_cap="redistribute").batch(4)


@chain
def mix_up_to_a_cap():
    parts = [arrays(5).shuffle(1), arrays(6, 100)]
    capped = Dataset.mix(parts, [1, 1], epochs=4, at_cap="stop")
    return Dataset.mix([capped, arrays(80, 200)], stop="repeat", at_cap="error").batch(4)


@chain
def mix_by_length(folder):
    documents(30).save(folder / "by_length", engine="inline", num_workers=1)
    parts = [Dataset.open(folder / "by_length").shuffle(n) for n in range(2)]
    return Dataset.mix(parts, [3, 1], count="t", stop="repeat").batch(4, pad_to={"t": 20})


@chain
def mix_endless():
    parts = [arrays(7).shuffle(1).repeat(), arrays(5, 100).random_map(draw).repeat()]
    return Dataset.mix(parts, [5, 3]).batch(8)


@chain
def mix_nested():
    inner = Dataset.mix([arrays(6).shuffle(1), arrays(9, 100)], [1, 2], stop="all_exhausted")
    outer = Dataset.mix([inner.random_map(draw), arrays(8, 200).shuffle(2)], [2, 1], stop="repeat")
    return Dataset.mix([outer, objects(30, 300)], [3, 1]).shuffle(4).batch(4).repeat()


@chain
def mix_of_batches():
    parts = [arrays(20).shuffle(1).batch(4), arrays(30, 100).batch(4, drop_remainder=True)]
    return Dataset.mix(parts, [2, 1], stop="all_exhausted").random_map(draw_rows)


@chain
def mix_of_splits_and_zips():
    train, rest = arrays(40).split(0.75, 0.25, seed=1)
    pairs = Dataset.zip(rest, rest.shuffle(2)).map(lambda pair: shift(500, pair[0]))
    return Dataset.mix([train.shuffle(3), pairs], [3, 1], stop="all_exhausted").batch(5).repeat()


# Batches --------------------------------------------------------------------------------------


@chain
def batch_drop_remainder():
    return arrays(30).shuffle(1).batch(4, drop_remainder=True).repeat()


@chain
def batch_pad_remainder():
    return arrays(30).shuffle(1).batch(4, pad_remainder=True).repeat()


@chain
def batch_mask_key():
    return objects(27).batch(4, pad_remainder=True, mask_key="real").map(double)


@chain
def batch_pad_to():
    return numbered(26).batch(4, pad_to={"t": 12})


@chain
def batch_pad_value():
    return documents(26).shuffle(1).batch(4, pad_to={"t": 11}, pad_value=-1).repeat()


@chain
def batch_pad_value_by_leaf():
    texts = pairs_of_texts(26).shuffle(1)
    pads = {"s": 8, "t": 4}
    return texts.batch(8, pad_to=pads, pad_value={"t": -3, "s": 9}, pad_remainder=True)


@chain
def batch_collate():
    return arrays(26).shuffle(1).batch(4, collate_fn=total)


@chain
def batch_collate_dropping():
    return objects(40).random_map(draw).batch(4, collate_fn=total, drop_remainder=True).repeat()


@chain
def batch_of_the_whole():
    return arrays(6).shuffle(1).batch(8).repeat()


@chain
def unbatch():
    return arrays(24).batch(4).shuffle(1).map(double).unbatch().batch(3)


@chain
def unbatch_draws():
    batches = arrays(22).shuffle(1).batch(4).random_map(draw_rows)
    return batches.unbatch().shuffle(2).random_map(draw).batch(5).repeat()


@chain
def unbatch_padding():
    padded = objects(22).batch(4, pad_remainder=True).map(without_mask)
    return padded.repeat(2).unbatch().batch(8)


@chain
def unbatch_records():
    return arrays(9).batch(2).map(double).unbatch()


@chain
def unbatch_mixed():
    parts = [arrays(20).batch(4).take(4).unbatch(), arrays(20, 100).shuffle(1)]
    return Dataset.mix(parts, stop="all_exhausted").batch(4)


# Streams: choosing ----------------------------------------------------------------------------


@chain
def filter_records():
    return arrays(60).filter(partial(in_part, 3)).batch(4)


@chain
def filter_without_batch():
    return arrays(14).shuffle(1).filter(partial(in_part, 3))


@chain
def filter_runs():
    return arrays(60).shuffle(1).filter(partial(in_part, 3), batched=True).batch(4)


@chain
def filter_many():
    return Dataset.range(40_000).shuffle(1).filter(is_even, batched=True).batch(1500).repeat()


@chain
def filter_many_lanes():
    chosen = Dataset.range(70_000).filter(is_even, batched=True).repeat()
    return chosen.batch(2048, lanes=4)


@chain
def filter_in_units_of_8_192():
    return Dataset.range(9000).repeat().filter(is_even, batched=True).batch(64, lanes=2)


@chain
def filter_in_units_of_1_024():
    return arrays(9000).filter(partial(in_part, 3)).repeat().batch(64, lanes=2)


@chain
def filter_in_units_of_256():
    return objects(2100).filter(partial(in_part, 3)).repeat().batch(32, lanes=2)


@chain
def filter_in_units_of_8_mb():
    large = Dataset.from_arrays(
        x=np.arange(90, dtype=np.int64), y=np.zeros((90, 1 << 17), np.uint8)
    )
    return large.repeat().filter(partial(in_part, 3)).map(lambda r: r["x"]).batch(4, lanes=2)


@chain
def filter_draws():
    drawn = arrays(60).shuffle(1).random_map(draw).filter(is_drawn).random_map(draw)
    return drawn.repeat().batch(8, lanes=4)


@chain
def filter_objects_in_lanes():
    return objects(70).filter(partial(in_part, 5)).map(double, batched=True).batch(8, lanes=2)


@chain
def filter_that_ends_in_lanes():
    return arrays(70).filter(partial(in_part, 5)).batch(8, lanes=4)


@chain
def filter_runs_of_a_mix():
    mixed = Dataset.mix([arrays(40), objects(40, 100).filter(partial(in_part, 3))], [2, 1])
    return mixed.filter(partial(in_part, 2), batched=True).batch(4)


@chain
def flat_map_records():
    return arrays(40).flat_map(copies).batch(4)


@chain
def flat_map_draws():
    children = arrays(40).shuffle(1).random_map(draw).flat_map(copies).random_map(draw)
    return children.random_keys().repeat().batch(8, lanes=4)


@chain
def flat_map_twice():
    return objects(40).flat_map(copies).random_map(draw).flat_map(copies).batch(4)


@chain
def flat_map_in_small_units():
    return arrays(40).flat_map(copies, window=2).random_map(draw).repeat().batch(8, lanes=4)


@chain
def flat_map_texts():
    return Dataset.from_source(["to be", "", "or not", "to  be ", "that"] * 3).flat_map(str.split)


@chain
def stream_of_everything_per_record():
    stream = arrays(60).shuffle(1).filter(partial(in_part, 3)).map(double)
    stream = stream.random_map(draw).flat_map(copies).filter(is_drawn, batched=True)
    return stream.random_map(draw_rows, batched=True, seed=5).shuffle(window=16).batch(4)


@chain
def stream_with_global_generators():
    return arrays(40).filter(partial(in_part, 3)).random_map(draw_globally, seed_globals=True)


@chain
def stream_shuffled_in_windows():
    return arrays(60).filter(partial(in_part, 3)).shuffle(2, window=8).repeat().batch(8, lanes=2)


@chain
def stream_shuffled_in_two_windows():
    stream = arrays(60).shuffle(window=4).filter(partial(in_part, 3)).shuffle(2, window=4)
    return stream.random_map(draw).shuffle(3, window=16).batch(4)


@chain
def window_stage():
    stream = arrays(60).apply(OddFirst(copies=2)).random_map(draw).shuffle(3, window=4)
    return stream.repeat().batch(8, lanes=4)


@chain
def window_stage_that_draws():
    return objects(50).shuffle(1).apply(DrawTogether(seed=3)).apply(OddFirst(window=16)).batch(4)


@chain
def window_stage_over_a_mix():
    parts = [arrays(30).filter(partial(in_part, 3)), arrays(20, 100).shuffle()]
    return Dataset.mix(parts, stop="repeat").apply(DrawTogether()).batch(4)


@chain
def stream_batch_padded():
    return arrays(50).filter(partial(in_part, 3)).batch(4, pad_remainder=True, mask_key="real")


@chain
def stream_batch_dropped():
    return arrays(50).filter(partial(in_part, 3)).batch(4, drop_remainder=True).repeat()


@chain
def stream_batch_pad_to():
    stream = documents(50).filter(is_long).repeat()
    return stream.batch(8, lanes=4, pad_to={"t": 11}, pad_value=-1)


@chain
def stream_batch_collate():
    return objects(50).filter(partial(in_part, 3)).batch(4, collate_fn=total)


@chain
def stream_functions_of_batches():
    batches = arrays(60).shuffle(1).filter(partial(in_part, 3)).repeat().batch(8, lanes=4)
    return batches.map(double).random_map(draw_rows).map_with_index(number).random_keys("k")


@chain
def stream_take_of_records():
    return arrays(60).filter(partial(in_part, 3)).skip(5).take(24).random_map(draw).batch(4)


@chain
def stream_slice_of_records():
    return objects(60).flat_map(copies)[7:35].shuffle(1, window=6).batch(4)


@chain
def stream_take_repeated():
    taken = arrays(60).shuffle(1).filter(partial(in_part, 3)).take(10)
    return taken.random_map(draw).repeat().batch(4)


@chain
def stream_take_of_batches():
    return arrays(60).filter(partial(in_part, 3)).batch(8, lanes=4).take(4).repeat()


@chain
def stream_skip_of_batches():
    batches = arrays(60).shuffle(1).filter(partial(in_part, 3)).repeat().batch(8, lanes=2)
    return batches.skip(3).map_with_index(number)[1:8]


@chain
def stream_repeat_below_batch():
    return arrays(30).shuffle(1).filter(partial(in_part, 3)).repeat(3).batch(3)


@chain
def stream_repeat_above_batch():
    return arrays(30).shuffle(1).filter(partial(in_part, 3)).batch(3).repeat(3)


@chain
def stream_repeat_below_and_above_batch():
    stream = arrays(12).shuffle(1).filter(partial(in_part, 3)).repeat(2)
    return stream.random_map(draw).batch(5).random_map(draw_rows).repeat()


@chain
def stream_repeat_nested():
    stream = arrays(9).shuffle(1).repeat(2).filter(partial(in_part, 3)).random_map(draw)
    return stream.repeat(2).shuffle(2, window=4).repeat().batch(4)


@chain
def stream_seeds():
    stream = arrays(60).shuffle().seed(4).filter(partial(in_part, 3)).random_map(draw)
    return stream.shuffle(window=8).batch(4).seed(5)


@chain
def stream_of_unbatched():
    return arrays(40).batch(4).random_map(draw_rows).unbatch().filter(is_drawn).batch(4)


@chain
def stream_of_joins():
    joined = Dataset.concatenate(arrays(20).shuffle(1), arrays(15, 100))
    pairs = Dataset.zip({"a": joined, "b": joined.shuffle(2)})
    return pairs.filter(lambda pair: pair["a"]["x"] % 3 != 0).batch(4)


@chain
def stream_of_picked():
    picked = arrays(10)[[1, 1, 2, 2, 3, 0, 0, 9, 9, 9, 5, 5, 4, 4, 8, 8, 7, 7]]
    return picked.random_map(draw).filter(is_drawn).repeat().batch(4)


@chain
def stream_of_endless():
    return arrays(13).shuffle(1).repeat().filter(partial(in_part, 3)).random_map(draw).batch(4)


# Streams: packing -----------------------------------------------------------------------------


@chain
def pack_best_fit():
    return documents(60).pack({"t": 16}, window=20).batch(2)


@chain
def pack_rows_alone():
    return documents(40).pack({"t": 16})


@chain
def pack_first_fit():
    return documents(60).shuffle(1).pack({"t": 16}, strategy="first_fit", window=20).batch(2)


@chain
def pack_concat():
    return documents(60).shuffle(1).pack({"t": 16}, strategy="concat", window=30).batch(2).repeat()


@chain
def pack_whole_documents():
    options = {"strategy": "concat", "whole_documents": True, "window": 16}
    return documents(60).pack({"t": 20}, **options).repeat().batch(4, lanes=2)


@chain
def pack_truncate():
    return documents(60).pack({"t": 7}, overflow="truncate", window=20, pad_value=-1).batch(4)


@chain
def pack_split():
    options = {"overflow": "split", "strategy": "first_fit", "window": 20}
    return documents(60).shuffle(1).pack({"t": 4}, **options).random_keys().batch(4)


@chain
def pack_split_documents():
    options = {"overflow": "split", "strategy": "concat", "whole_documents": True}
    return documents(40).pack({"t": 5}, **options).batch(4)


@chain
def pack_drop():
    return documents(60).pack({"t": 8}, overflow="drop", window=20).repeat().batch(4, lanes=2)


@chain
def pack_max_segments():
    return numbered(60).pack({"t": 30}, max_segments=3, window=20).batch(2)


@chain
def pack_names():
    options = {"segment_ids": "{}_ids", "positions": "at_{}", "window": 30}
    return documents(60).pack({"t": 16}, **options).batch(3)


@chain
def pack_without_names():
    return documents(60).pack({"t": 16}, segment_ids=None, positions=None, window=30).batch(3)


@chain
def pack_bos():
    return documents(60).pack({"t": 16}, bos=-7, window=20).batch(3)


@chain
def pack_bos_concat():
    options = {"bos": {"t": -7}, "strategy": "concat", "pad_value": {"t": -1}}
    return documents(60).pack({"t": 16}, window=20, **options).batch(3)


@chain
def pack_eos():
    options = {"eos": -7, "strategy": "concat", "continue_positions": True}
    return documents(60).pack({"t": 16}, window=20, **options).batch(3)


@chain
def pack_alike():
    def with_mask(record):
        return {**record, "mask": record["t"] % 2 == 0}

    options = {"eos": {"t": -7, "mask": True}, "overflow": "split", "continue_positions": True}
    return documents(60).map(with_mask).pack({"t": 6, "mask": "t"}, window=20, **options).batch(3)


@chain
def pack_balanced():
    rows = documents(300).shuffle(1).pack({"t": 24}, window=100, balance="squares", balance_rows=4)
    return rows.random_keys().repeat().batch(8, lanes=2)


@chain
def pack_balanced_by_cost():
    def cost(lengths):
        return 3 * lengths + lengths**2

    return documents(200).pack({"t": 24}, window=100, balance=cost).batch(8)


@chain
def pack_two_leaves():
    options = {"pad_value": {"s": -1, "t": -2}, "bos": {"s": -3, "t": -4}, "max_segments": 4}
    return pairs_of_texts(60).shuffle(1).pack({"s": 16, "t": 9}, window=20, **options).batch(3)


@chain
def pack_keys_of_rows():
    rows = documents(60).shuffle(1).random_keys().pack({"t": 16}, window=20, max_segments=5)
    rows = rows.random_keys("row")
    return rows.shuffle(2, window=20).repeat().batch(4, lanes=2).random_keys("batch")


@chain
def pack_of_a_stream():
    stream = documents(80).shuffle(1).filter(is_long).flat_map(halves)
    return stream.pack({"t": 12}, strategy="first_fit", window=16).filter(is_long).batch(3)


@chain
def pack_of_many():
    return documents(5000).shuffle(1).pack({"t": 256}).repeat().batch(8)


@chain
def tokens_of_documents(folder):
    return Dataset.from_source(Tokens(folder / "tokens.bin", 8, end=350)).shuffle(4).batch(4)


@chain
def pack_of_tokens(folder):
    rows = Dataset.from_source(Tokens(folder / "tokens.bin", 5))
    return rows.pack({"tokens": 12}, window=8).repeat().batch(4, lanes=4)


# Streams: buckets -----------------------------------------------------------------------------


@chain
def bucket_sizes():
    return numbered(60).bucket([4, 8, 12], [4, 3, 2], window=20)


@chain
def bucket_one_size():
    return documents(60).shuffle(1).bucket([3, 11], 4, leaves="t", window=30).repeat()


@chain
def bucket_whole():
    return numbered(60).bucket([4, 8, 12], [4, 3, 2]).map(lambda batch: batch)


@chain
def bucket_drop_remainder():
    buckets = documents(60).shuffle(1).bucket([6, 12], 3, window=20, drop_remainder=True)
    return buckets.random_keys().repeat()


@chain
def bucket_pad_value():
    options = {"pad_value": {"s": -1, "t": -2}, "mask_key": "real", "window": 16}
    return pairs_of_texts(60).bucket([4, 7], [4, 3], leaves=["s", "t"], **options)


@chain
def bucket_of_a_stream():
    stream = documents(80).shuffle(1).filter(is_long).flat_map(halves).random_keys()
    return stream.shuffle(2, window=16).bucket([3, 6], [4, 3], leaves="t", window=32, pad_value=-1)


@chain
def bucket_taken():
    return numbered(60).bucket([4, 8, 12], 3, window=20).skip(2).take(8).map_with_index(
        lambda index, batch: {**batch, "n": batch["n"] + 1000 * index}
    )  # fmt: skip


# Streams: mixing ------------------------------------------------------------------------------


def stream_parts() -> list[Dataset[Any]]:
    return [
        arrays(40).shuffle(1).filter(partial(in_part, 3)).random_map(draw),
        arrays(50, 1000).random_map(draw),
        objects(30, 2000).flat_map(copies),
    ]


@chain
def stream_mix():
    return Dataset.mix(stream_parts(), [3, 2, 1]).batch(4)


@chain
def stream_mix_even_records():
    return Dataset.mix([part.map(without_mask) for part in stream_parts()[:2]])


@chain
def stream_mix_repeat():
    parts = [stream_parts()[0].take(8), stream_parts()[1].take(20)]
    return Dataset.mix(parts, [1, 2], stop="repeat").batch(4)


@chain
def stream_mix_planned():
    parts = [*(part.repeat() for part in stream_parts()[:2]), arrays(9, 500)]
    weights = [(0, [1, 1, 0]), ramp(20, 60, to=[1, 2, 1])]
    mixed = Dataset.mix(parts, weights, epochs={2: 2}, at_cap="redistribute")
    return mixed.random_map(draw).batch(8, lanes=4)


@chain
def stream_mix_with_caps():
    first, _, second = stream_parts()
    mixed = Dataset.mix([first.repeat(), second], epochs={1: 2}, at_cap="redistribute", rows={1: 9})
    return mixed.random_map(draw).batch(8, lanes=4)


@chain
def stream_mix_endless_lanes():
    parts = [part.repeat() for part in stream_parts()]
    return Dataset.mix(parts, [0.5, 0.25, 0.25]).random_map(draw).batch(8, lanes=4)


@chain
def stream_mix_nested():
    one, two, three = stream_parts()
    inner = Dataset.mix([one, two], [1, 3], stop="repeat").map(double)
    return Dataset.mix([inner, three.repeat()], [2, 1]).repeat().batch(8, lanes=2)


@chain
def stream_mix_of_iterables():
    parts = [Dataset.from_iterable(shards), Dataset.from_iterable(shards).map(partial(shift, 500))]
    mixed = Dataset.mix([part.repeat() for part in parts], [2, 1])
    return mixed.random_map(draw).batch(8, lanes=4)


@chain
def stream_mix_with_iterable():
    return Dataset.mix([Dataset.from_iterable(lines), arrays(40, 100)], [1, 2]).batch(4)


@chain
def stream_mix_of_packed():
    parts = [documents(60, base).pack({"t": 16}, window=20).repeat() for base in (0, 500)]
    return Dataset.mix(parts, [7, 3]).random_keys().batch(8, lanes=2)


@chain
def stream_mix_in_windows():
    mixed = Dataset.mix([part.repeat() for part in stream_parts()], [3, 2, 1])
    return mixed.shuffle(5, window=8).batch(8, lanes=2)


@chain
def stream_mix_packed():
    parts = [documents(40).filter(is_long), documents(40, 500).shuffle(1)]
    mixed = Dataset.mix(parts, [1, 1], stop="repeat")
    return mixed.pack({"t": 16}, strategy="first_fit", window=8).batch(2)


@chain
def stream_mix_bucketed():
    mixed = Dataset.mix([documents(40).filter(is_long), documents(60, 500)], [1, 2])
    return mixed.bucket([5, 11], [4, 2], window=12)


@chain
def stream_mix_taken():
    mixed = Dataset.mix([part.repeat() for part in stream_parts()], [3, 2, 1])
    return mixed.skip(3).take(30).filter(is_drawn).shuffle(1, window=4).repeat().batch(4)


@chain
def window_over_iterable():
    return Dataset.from_iterable(lines).shuffle(3, window=8).batch(4)


@chain
def window_over_iterable_in_lanes():
    stream = Dataset.from_iterable(shards).filter(partial(in_part, 3)).shuffle(3, window=4)
    return stream.random_keys().repeat().batch(8, lanes=2)


@chain
def pack_over_iterable():
    def texts() -> Iterator[dict[str, Any]]:
        for i in range(50):
            yield {"t": np.arange(i * 7 % 11 + 1, dtype=np.int32) + 100 * i}

    return Dataset.from_iterable(texts).pack({"t": 16}, window=10).random_keys().batch(3)


@chain
def bucket_over_iterable():
    def texts() -> Iterator[dict[str, Any]]:
        for i in range(50):
            yield {"t": np.arange(i * 7 % 11 + 1, dtype=np.int32) + 100 * i}

    return Dataset.from_iterable(texts).bucket([5, 11], [4, 2], window=20)


@chain
def take_over_iterable():
    taken = Dataset.from_iterable(lines).skip(4).take(20).flat_map(copies)
    return taken.random_map(draw).repeat(2).batch(4)


# Failures -------------------------------------------------------------------------------------


@chain
def on_error_raise():
    return arrays(40).map(partial(fails, (17,))).on_error("raise").batch(4)


@chain
def on_error_raise_in_a_stream():
    stream = arrays(200).map(partial(fails, (57,))).filter(partial(in_part, 3))
    return stream.batch(4)


@chain
def on_error_replace():
    failing = arrays(40).map(partial(fails, (3, 4, 17, 30))).shuffle(1)
    return failing.random_map(draw).on_error("replace").batch(4).repeat()


@chain
def on_error_replace_in_parts():
    parts = [part.map(partial(fails_every, 7)) for part in arrays(40).split(0.5, 0.5, seed=2)]
    mixed = Dataset.mix([parts[0].on_error("replace", limit=20), parts[1].shuffle(2)], [2, 1])
    return mixed.on_error("replace").batch(4)


@chain
def on_error_replace_in_a_stream():
    stream = arrays(60).filter(partial(in_part, 3)).map(partial(fails_every, 7))
    return stream.on_error("replace").random_map(draw).repeat().batch(8, lanes=2)


@chain
def on_error_skip():
    return arrays(60).map(partial(fails_every, 9)).on_error("skip").batch(4)


@chain
def on_error_skip_with_limit():
    failing = objects(60).shuffle(1).map(partial(fails_every, 9))
    return failing.on_error("skip", limit=50).random_map(draw).repeat().batch(8, lanes=4)


@chain
def on_error_skip_in_a_stream():
    stream = objects(60).flat_map(copies).map(partial(fails_every, 9)).on_error("skip")
    return stream.shuffle(2, window=8).batch(4)


@chain
def on_error_limit_reached():
    return arrays(60).map(partial(fails_every, 9)).on_error("replace", limit=3).batch(4)


@chain
def on_error_function():
    return arrays(40).map(partial(fails_every, 9)).on_error(replace_value_errors).batch(4).repeat()


@chain
def on_error_function_in_a_stream():
    failing = arrays(60).filter(partial(in_part, 3)).map(partial(fails_every, 9))
    return failing.on_error(replace_value_errors, limit=40).batch(4)


@chain
def on_error_over_mix():
    failing = [part.map(partial(fails_every, 9)) for part in stream_parts()]
    return Dataset.mix(failing, [2, 1, 1]).on_error("skip").batch(4)


@chain
def on_error_over_iterable():
    stream = Dataset.from_iterable(lines).map(partial(fails_every, 9)).on_error("skip")
    return stream.shuffle(2, window=4).batch(4)


@chain
def on_error_over_take():
    taken = arrays(60).filter(partial(in_part, 3)).take(30)
    return taken.map(partial(fails_every, 9)).on_error("replace").batch(4).repeat()


# Steps and records that are left out ----------------------------------------------------------


@chain
def skip_steps_of_batches():
    batches = arrays(40).shuffle(1).random_map(draw).batch(4).repeat()
    return batches.skip_steps([(2, 4), (8, 23)]).map(double)


@chain
def skip_steps_of_a_stream():
    stream = arrays(60).shuffle(2).filter(partial(in_part, 3)).repeat()
    return stream.batch(4, lanes=4).skip_steps([(1, 2), (5, 9)])


@chain
def without_replaced():
    return arrays(40).without([3, 17, 22]).shuffle(1).random_map(draw).batch(4).repeat()


@chain
def without_masked():
    masked = arrays(40).without([3, 17, 22], fill="mask", mask_key="is_real")
    return masked.shuffle(2, window=8).batch(4).repeat()


@chain
def without_empty():
    texts = documents(80).without([5, 6, 40, 41, 42], fill="empty").shuffle(1)
    return texts.pack({"t": 24}, window=20, max_segments=20).repeat().batch(4, lanes=4)


# All of it ------------------------------------------------------------------------------------


@chain
def deep_index_chain():
    train, rest = arrays(48).seed(2).split(0.75, 0.25)
    doubled = train.shuffle().random_map(draw).batch(4).shuffle(3).random_map(draw_rows).unbatch()
    others = Dataset.concatenate(rest.repeat(2), objects(10, 900).shuffle(window=4))
    mixed = Dataset.mix([doubled, others.random_map(draw)], [2, 1], stop="all_exhausted")
    return (
        mixed[::-1].random_keys(seed=4).repeat(2).shuffle(5).batch(8).map(double).seed(7).repeat()
    )


@chain
def deep_stream_chain():
    chat = (
        documents(120)
        .shuffle(1)
        .filter(is_long)
        .random_keys()
        .pack({"t": 24}, window=20, max_segments=6)
    )
    code = documents(60, 500).repeat(2).shuffle(2).flat_map(halves).random_keys()
    code = code.shuffle(window=10).pack({"t": 24}, strategy="first_fit", window=20, max_segments=6)
    mixed = Dataset.mix([chat.repeat(), code.repeat()], [3, 1]).random_keys("mixed")
    return mixed.batch(8, lanes=4).random_keys("batch").skip(1).seed(5)


@chain
def deep_stream_that_ends():
    parts = [part.on_error("skip").take(25) for part in stream_parts()]
    mixed = Dataset.mix(parts, [2, 1, 1]).shuffle(1, window=6).random_map(draw).skip(2)
    batches = mixed.flat_map(copies).repeat(2).batch(4, pad_remainder=True)
    return batches.map(double).take(9).repeat(2)
