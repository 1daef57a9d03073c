"""Lists of indices in a mapped file."""

from __future__ import annotations

import gc
import os
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest

from loaderx.compat.torch.shared_lists import SharedLists


def arrays(*lists):
    return [np.array(one, np.int64) for one in lists]


def contents(lists):
    return [lists[i].tolist() for i in range(len(lists))]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_copy_sees_other_lists():
    shared = SharedLists(arrays([3, 1], [], [-2]))
    assert contents(shared) == [[3, 1], [], [-2]]
    copy = pickle.loads(pickle.dumps(shared))
    assert shared.replace(arrays([5, 6], [], [7]))
    assert contents(copy) == contents(shared) == [[5, 6], [], [7]]


def test_lists_of_other_lengths_do_not_fit():
    shared = SharedLists(arrays([1], [2, 3]))
    assert not shared.replace(arrays([1, 2], [3]))
    assert not shared.replace(arrays([1]))
    assert contents(shared) == [[1], [2, 3]]


def test_the_file_is_removed(folder):
    shared = SharedLists(arrays([1]))
    (file,) = Path(folder).iterdir()
    assert file.name.startswith("loaderx-order-")
    del shared
    gc.collect()
    assert not list(Path(folder).iterdir())


def test_a_fork_leaves_the_file(folder, monkeypatch):
    lists = SharedLists(arrays([1]))
    (path,) = folder.iterdir()
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        del lists
    assert path.exists()
