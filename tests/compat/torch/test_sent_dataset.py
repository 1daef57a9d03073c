"""Datasets that are sent to workers that run."""

from __future__ import annotations

import os
import pickle
import threading

import numpy as np
import pytest

from loaderx.compat.torch.sent_dataset import MOST_BYTES, SentDataset


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_a_worker_gets_what_was_sent_last():
    sent = SentDataset()
    worker = pickle.loads(pickle.dumps(sent))
    assert worker.newest("old") == "old"
    for value in ("a", "b", "b", "c" * 100_000, "d"):
        assert sent.send(value)
        assert worker.newest("old") == value
        assert worker.newest("old") is worker.newest("old")  # it is read once
        assert pickle.loads(pickle.dumps(sent)).newest("old") == value  # a worker that comes later
    assert sent.newest("own") == "own"  # in the process that sends


def test_new_workers_have_the_dataset_as_it_is():
    sent = SentDataset()
    sent.clear()
    worker = pickle.loads(pickle.dumps(sent))
    sent.send("a")
    assert worker.newest("old") == "a"
    sent.clear()
    assert pickle.loads(pickle.dumps(sent)).newest("new") == "new"
    sent.send("b")
    assert worker.newest("new") == "b"


@pytest.mark.parametrize(
    "value", [np.zeros(MOST_BYTES, np.uint8), [b"1234" * 1000] * 3 + [threading.Lock()]]
)
def test_what_is_not_sent(value):
    sent = SentDataset()
    worker = pickle.loads(pickle.dumps(sent))
    assert not sent.send(value)
    assert worker.newest("old") == "old"


def test_files_are_made_when_needed_and_removed(folder):
    sent = SentDataset()
    sent.clear()
    assert os.listdir(folder) == []
    pickle.dumps(sent)
    assert len(os.listdir(folder)) == 1
    del sent
    assert os.listdir(folder) == []
