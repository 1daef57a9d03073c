"""Parts by class have the counts of scikit-learn; parts by group share none, as there."""

from __future__ import annotations

import numpy as np
import pytest

from loaderx import Dataset

pytestmark = pytest.mark.owners
selection = pytest.importorskip("sklearn.model_selection", reason="scikit-learn is not installed")


@pytest.mark.parametrize("seed", range(20))
def test_counts_of_classes_are_those_of_train_test_split(seed):
    rng = np.random.default_rng(seed)
    labels = rng.choice(6, rng.integers(200, 1000), p=rng.dirichlet(np.full(6, 5)))
    held_out = int(len(labels) * rng.uniform(0.1, 0.5))
    dataset = Dataset.from_arrays(label=labels)
    parts = dataset.split_indices(len(labels) - held_out, held_out, stratify="label", seed=seed)
    theirs = selection.train_test_split(labels, test_size=held_out, stratify=labels)
    exact = np.bincount(labels) * len(parts[0]) / len(labels)
    ties = len(np.unique(np.round(exact % 1, 9))) < len(exact)  # which they draw
    for indices, expected in zip(parts, theirs, strict=True):
        found, wanted = np.bincount(labels[indices]), np.bincount(expected)
        assert np.abs(found - wanted).max() <= ties, (found, wanted)


def test_folds_of_indices_have_the_counts_of_stratified_k_fold():
    labels = np.random.default_rng(0).choice(4, 400)
    folds = Dataset.range(400).split_indices(*[0.2] * 5, stratify=labels)
    theirs = selection.StratifiedKFold(5).split(labels, labels)
    for fold, (_, test) in zip(folds, theirs, strict=True):
        assert np.abs(np.bincount(labels[fold]) - np.bincount(labels[test])).max() <= 1


def test_groups_are_as_near_to_the_sizes_as_those_of_group_shuffle_split():
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(60), rng.integers(1, 40, 60))
    train, test = Dataset.range(len(groups)).split_indices(0.75, 0.25, groups=groups)
    assert not set(groups[train]) & set(groups[test])
    splitter = selection.GroupShuffleSplit(10, test_size=0.25, random_state=0)
    errors = [
        abs(len(found) - len(groups) / 4) for _, found in splitter.split(groups, groups=groups)
    ]
    assert abs(len(test) - len(groups) / 4) <= min(errors)
