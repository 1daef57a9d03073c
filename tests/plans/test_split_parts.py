"""`split` and `split_indices`: fractions, counts, classes and groups."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chains import arrays, ids
from loaderx import ArgumentError, ArgumentTypeError, ChainError, DataLoader, Dataset


def test_split_is_disjoint_complete_and_the_same_in_every_epoch():
    train, test = arrays(50).split(0.8, 0.2, seed=3)
    assert (len(train), len(test)) == (40, 10)
    assert sorted(ids(train) + ids(test)) == list(range(50))
    assert ids(train) != sorted(ids(train))
    again = {tuple(sorted(b["x"].tolist())) for b in train.shuffle().batch(40).repeat(3)}
    assert again == {tuple(sorted(ids(train)))}
    plain = arrays(10).split(0.3, 0.3, 0.4, shuffle=False)
    assert [ids(part) for part in plain] == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
    other, _ = arrays(50).split(0.8, 0.2, seed=4)
    assert ids(other) != ids(train)


def test_a_seed_set_later_does_not_move_the_border_of_a_split():
    train, test = Dataset.range(100).split(0.8, 0.2)
    held_out = {int(x) for x in test}
    assert not held_out & {int(x) for x in train.shuffle().seed(1)}
    mixed = Dataset.mix([train.shuffle(), Dataset.range(1000, 1100)]).seed(5)
    assert not held_out & {int(x) for x in mixed}


def test_split_after_a_mix_that_repeats_is_refused():
    with pytest.raises(ChainError, match="split after"):
        Dataset.mix([Dataset.range(4), Dataset.range(9)], stop="repeat").split(0.5, 0.5)


# Counts -----------------------------------------------------------------------------------------


def test_counts_are_the_sizes_of_the_parts():
    parts = arrays(50).split(30, 15, 5, seed=3)
    assert [len(part) for part in parts] == [30, 15, 5]
    assert [ids(part) for part in parts[:1]] == [ids(arrays(50).split(0.6, 0.4, seed=3)[0])]
    assert [len(part) for part in arrays(3).split(np.int64(2), 1)] == [2, 1]
    assert [len(part) for part in arrays(3).split(1)] == [3]  # the fraction
    assert [len(part) for part in arrays(300).split(*np.array([200, 100], np.uint8))] == [200, 100]
    assert [len(part) for part in arrays(8).split(*np.array([0.5, 0.5], np.float32))] == [4, 4]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((80, 20), r"up to 1000, .*\(fractions to 1\), got 100; write .split\(80, 20, 900\)"),
        ((800, 300), r"add up to 1000, the number of elements \(fractions to 1\), got 1100\.$"),
        ((900, 0.1), "between 0 and 1, got 900; or all of them whole numbers, which add"),
        ((1000, 0), r"part 1 would be empty \(0 of 1000\)"),
        ((1001, -1), r"part 1 would be empty \(-1 of 1000\)"),
    ],
)  # fmt: skip
def test_counts_that_are_no_split(sizes, message):
    with pytest.raises(ArgumentError, match=message):
        arrays(1000).split(*sizes)


# Indices ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"seed": 4}, {"stratify": "y"}])
def test_indices_choose_the_elements_of_the_parts(options):
    dataset = Dataset.from_arrays(x=np.arange(60), y=np.arange(60) % 3)[::-1]
    parts = dataset.split(0.5, 0.3, 0.2, **options)
    for part, index in zip(parts, dataset.split_indices(0.5, 0.3, 0.2, **options), strict=True):
        assert index.dtype == np.int64
        assert ids(dataset[index]) == ids(part)


def test_folds_from_indices():
    folds = Dataset.range(10).split_indices(*[1 / 3] * 3)
    assert sorted(np.concatenate(folds).tolist()) == list(range(10))


# Classes ----------------------------------------------------------------------------------------

LABELS = st.lists(st.integers(0, 3), min_size=12, max_size=80).filter(
    lambda labels: min(np.unique(labels, return_counts=True)[1]) >= 3
)


@given(LABELS, st.floats(0.1, 0.8), st.booleans(), st.integers(0, 5))
def test_every_class_has_its_share_of_every_part(labels, fraction, shuffle, seed):
    labels = np.array(labels)
    counts = [round(fraction * len(labels)), len(labels) // 10]
    sizes = [*counts, len(labels) - sum(counts)]
    parts = Dataset.range(len(labels)).split_indices(
        *sizes, stratify=labels, shuffle=shuffle, seed=seed
    )
    assert [len(part) for part in parts] == sizes
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    _, left = np.unique(labels, return_counts=True)
    for part in parts:
        found = np.array([np.sum(labels[part] == name) for name in np.unique(labels)])
        assert np.all(np.abs(found - left * len(part) / left.sum()) < 1)
        left = left - found
    if not shuffle:
        assert all(np.all(np.diff(part) > 0) for part in parts)


def test_labels_may_be_any_names_and_stand_anywhere():
    names = np.array(["cat", "dog", "cat", "dog"] * 5, object)
    dataset = Dataset.from_source([{"pet": {"name": name}} for name in names])
    expected = dataset.split_indices(0.5, 0.5, stratify=names)
    for found in (
        dataset.split_indices(0.5, 0.5, stratify="pet.name"),
        dataset.map(dict).split_indices(0.5, 0.5, stratify="pet.name"),
        Dataset.concatenate(dataset[:7], dataset[7:]).split_indices(10, 10, stratify="pet.name"),
        dataset.split_indices(0.5, 0.5, stratify=names.tolist()),
    ):
        assert all(np.array_equal(a, b) for a, b in zip(expected, found, strict=True))
    assert "split(10, 10, stratify=labels)[1]" in repr(dataset.split(10, 10, stratify=names)[1])


def test_parts_by_class_resume_and_keep_their_draws():
    dataset = Dataset.from_arrays(x=np.arange(40), y=np.arange(40) % 4)
    train, _ = dataset.split(0.75, 0.25, stratify="y")
    chain = train.random_map(lambda r, rng: {**r, "z": rng.random()}).shuffle(1).batch(4).repeat(2)
    expected = [batch["z"].tolist() for batch in DataLoader(chain, engine="threads")]
    for step in range(len(expected)):
        iterator = iter(DataLoader(chain, engine="inline"))
        iterator.seek(step)
        assert [batch["z"].tolist() for batch in iterator] == expected[step:]


@pytest.mark.parametrize("suffix", ["npz", "arrow", "csv", "images"])
def test_labels_are_read_without_the_other_leaves(tmp_path, suffix):
    y = np.arange(12) % 2
    dataset = opened(tmp_path, suffix, y)[::-1]
    parts = Dataset.concatenate(dataset, dataset).split_indices(0.5, 0.5, stratify="label", seed=1)
    given = Dataset.range(24).split_indices(0.5, 0.5, stratify=np.tile(y[::-1], 2), seed=1)
    assert all(np.array_equal(a, b) for a, b in zip(parts, given, strict=True))


def opened(folder, suffix, y):
    """A dataset of which only the labels can be read."""
    if suffix == "images":
        for number, label in enumerate(y):
            (folder / f"class{label}").mkdir(exist_ok=True)
            (folder / f"class{label}" / f"{number:02}.jpg").write_bytes(b"no image at all")
        names = sorted(folder.glob("*/*.jpg"))
        dataset = Dataset.open(folder)
        order = np.argsort([int(name.stem) for name in names])
        return dataset[order]
    if suffix == "npz":
        np.savez(folder / "x.npz", image=np.zeros((12, 3)), label=y)
        return Dataset.open(folder / "x.npz")
    import pyarrow as pa
    from pyarrow import csv, feather

    table = pa.table({"text": [f"t{n}" for n in range(12)], "label": y})
    if suffix == "csv":
        csv.write_csv(table, folder / "x.csv")
        return Dataset.open(folder / "x.csv", cache=False)
    feather.write_feather(table, folder / "x.arrow")
    return Dataset.open(folder / "x.arrow", cache=False)


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        ("labels", ArgumentError, "`stratify`: records have no leaf 'labels'; they have 'x', 'y'"),
        ("x", ArgumentError, r"class 0 has 1 of 20 elements, fewer than there are parts \(2\)"),
        (np.zeros(3), ArgumentError, r"each of the 20 elements, got an array of shape \(3,"),
        (np.array([1, "a"] * 10, object), ArgumentTypeError, "of one type, and has int, str"),
        ([None] * 20, ArgumentTypeError, "of one type, and has NoneType"),
    ],
)  # fmt: skip
def test_labels_that_are_none(labels, error, message):
    dataset = Dataset.from_arrays(x=np.arange(20), y=np.arange(20) % 2)
    with pytest.raises(error, match=message):
        dataset.split(0.5, 0.5, stratify=labels)


@pytest.mark.parametrize("lengths", [[0, 1, 2, 3], [1, 1, 1, 1]])
def test_leaves_that_are_no_labels(lengths):
    dataset = Dataset.from_source([{"x": np.arange(n)} for n in lengths])
    with pytest.raises(ArgumentError, match="one"):
        dataset.split(0.5, 0.5, groups="x")


def test_labels_of_batches_are_refused_by_name():
    batches = Dataset.from_arrays(x=np.arange(20), y=np.arange(20) % 2).batch(2)
    with pytest.raises(ChainError, match="names a leaf of records: write it before .batch"):
        batches.split(0.5, 0.5, stratify="y")
    assert len(batches.split(0.5, 0.5, stratify=np.arange(10) % 2)[0]) == 5


def test_classes_and_groups_together_are_refused():
    with pytest.raises(ArgumentError, match="cannot be used together: a group is in one part"):
        Dataset.range(4).split(0.5, 0.5, stratify=[0, 0, 1, 1], groups=[0, 0, 1, 1])


# Groups -----------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 12), min_size=20, max_size=80).filter(lambda g: len(set(g)) > 9),
    st.booleans(),
)
def test_no_group_is_in_two_parts(groups, shuffle):
    groups = np.array(groups)
    train, test = Dataset.range(len(groups)).split_indices(0.5, 0.5, groups=groups, shuffle=shuffle)
    assert sorted([*train, *test]) == list(range(len(groups)))
    assert not set(groups[train]) & set(groups[test])
    largest = np.unique(groups, return_counts=True)[1].max()
    assert abs(len(train) - len(groups) / 2) <= largest / 2 + 1


@pytest.mark.parametrize(
    ("sizes", "counts", "expected"),
    [
        ((0.8, 0.2), [10] * 10, [80, 20]),
        ((90, 10), [50, 40, *[1] * 10], [90, 10]),
        ((0.1, 0.9), [50, 40, *[1] * 10], [10, 90]),
        ((0.9, 0.1), [20] * 5, [80, 20]),
        ((0.6, 0.2, 0.2), [1] * 100, [60, 20, 20]),
    ],
)
def test_sizes_are_as_near_as_groups_allow(sizes, counts, expected):
    groups = np.repeat(np.arange(len(counts)), counts)
    parts = Dataset.from_arrays(g=groups).split(*sizes, groups="g")
    assert [len(part) for part in parts] == expected


def test_groups_of_equal_size_are_drawn():
    groups = np.repeat(np.arange(20), 5)
    dataset = Dataset.from_arrays(g=groups)
    held_out = [
        {int(r["g"]) for r in dataset.split(0.8, 0.2, groups="g", seed=s)[1]} for s in (1, 2)
    ]
    assert held_out[0] != held_out[1]


def test_a_part_without_a_group():
    with pytest.raises(ArgumentError, match="no group is left for part 1, of 1 elements. There ar"):
        Dataset.range(100).split(0.99, 0.01, groups=np.repeat([0, 1], 50))
