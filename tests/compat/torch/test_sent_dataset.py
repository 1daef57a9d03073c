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


def worker_of(state, monkeypatch):
    """As a process gets it."""
    with monkeypatch.context() as other:
        other.setattr(os, "getpid", lambda: -1)
        return pickle.loads(state)


def test_a_worker_gets_what_was_sent_last(monkeypatch):
    sent = SentDataset()
    state = pickle.dumps(sent)
    worker = worker_of(state, monkeypatch)
    assert worker.newest("old") == "old"
    for value in ("a", "b", "b", "c" * 100_000, "d"):
        assert sent.send(value)
        assert worker.newest("old") == value
        assert worker.newest("old") is worker.newest("old")  # it is read once
        assert worker_of(state, monkeypatch).newest("old") == value  # one that takes its place
        assert worker_of(pickle.dumps(sent), monkeypatch).newest("new") == "new"
    assert sent.newest("own") == "own"  # in the process that sends
    assert pickle.loads(pickle.dumps(sent)).newest("own") == "own"


def test_new_workers_have_the_dataset_as_it_is(monkeypatch):
    sent = SentDataset()
    assert sent.send("early")  # before there are any
    worker = worker_of(pickle.dumps(sent), monkeypatch)
    assert worker.newest("old") == "old"
    assert sent.send("a")
    assert worker.newest("old") == "a"
    later = worker_of(pickle.dumps(sent), monkeypatch)
    assert later.newest("new") == "new"
    assert sent.send("b")
    assert (worker.newest("old"), later.newest("new")) == ("b", "b")


@pytest.mark.parametrize(
    "value", [np.zeros(MOST_BYTES, np.uint8), [b"1234" * 1000] * 3 + [threading.Lock()]]
)
def test_what_is_not_sent(value, monkeypatch):
    sent = SentDataset()
    worker = worker_of(pickle.dumps(sent), monkeypatch)
    assert not sent.send(value)
    assert worker.newest("old") == "old"


def test_files_are_made_when_needed_and_removed(folder, monkeypatch):
    sent = SentDataset()
    sent.send("a")
    assert os.listdir(folder) == []
    pickle.dumps(sent)
    assert len(os.listdir(folder)) == 1
    state = pickle.dumps(sent)
    del sent
    assert os.listdir(folder) == []
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert pickle.loads(state).newest("own") == "own"


def test_a_file_that_somebody_has_removed(folder, monkeypatch):
    """New workers get the dataset as it is."""
    sent = SentDataset()
    worker = worker_of(pickle.dumps(sent), monkeypatch)
    assert sent.send("a")
    for file in folder.iterdir():
        file.unlink()
    assert not sent.send("b")
    assert worker_of(pickle.dumps(sent), monkeypatch).newest("new") == "new"
    assert worker.newest("old") == "a"
