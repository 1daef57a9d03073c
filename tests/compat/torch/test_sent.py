"""Values that are sent to workers that run."""

from __future__ import annotations

import os
import pickle
import threading

import numpy as np
import pytest

from loaderx.compat.torch.sent import MOST_BYTES, Sent


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
    sent = Sent("old")
    state = pickle.dumps(sent)
    worker = worker_of(state, monkeypatch)
    assert worker.newest() == "old"
    for value in ("a", "b", "b", "c" * 100_000, "d"):
        assert sent.send(value)
        assert sent.newest() is value  # in the process that sends
        assert worker.newest() == value
        assert worker.newest() is worker.newest()  # it is read once
        assert worker_of(state, monkeypatch).newest() == value  # one that takes its place
    assert pickle.loads(pickle.dumps(sent)).newest() == "d"


def test_new_workers_have_the_value_as_it_is(monkeypatch):
    sent = Sent(["old"])
    assert sent.send(["early"])  # before there are any
    worker = worker_of(pickle.dumps(sent), monkeypatch)
    assert worker.newest() == ["early"]
    assert sent.send(["a"])
    assert worker.newest() == ["a"]
    sent.newest()[0] = "changed"
    later = worker_of(pickle.dumps(sent), monkeypatch)
    assert later.newest() == ["changed"]
    assert sent.send(["b"])
    assert worker.newest() == later.newest() == ["b"]


@pytest.mark.parametrize("value", [np.zeros(MOST_BYTES, np.uint8), threading.Lock()])
def test_what_is_not_sent(value, monkeypatch):
    sent = Sent("old")
    worker = worker_of(pickle.dumps(sent), monkeypatch)
    assert not sent.send(value)
    assert worker.newest() == "old"
    assert sent.newest() is value


def test_files_are_made_when_needed_and_removed(folder, monkeypatch):
    sent = Sent("own")
    sent.send("a")
    assert os.listdir(folder) == []
    state = pickle.dumps(sent)
    (file,) = os.listdir(folder)
    assert file.startswith("loaderx-sent-")
    assert pickle.dumps(sent) == state
    del sent
    assert os.listdir(folder) == []
    assert worker_of(state, monkeypatch).newest() == "a"


def test_a_fork_leaves_the_file(folder, monkeypatch):
    sent = Sent("a")
    pickle.dumps(sent)
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        del sent
    assert len(os.listdir(folder)) == 1


def test_a_file_that_somebody_has_removed(folder, monkeypatch):
    """New workers get the value as it is."""
    sent = Sent("old")
    worker = worker_of(pickle.dumps(sent), monkeypatch)
    assert sent.send("a")
    for file in folder.iterdir():
        file.unlink()
    assert not sent.send("b")
    assert worker_of(pickle.dumps(sent), monkeypatch).newest() == "b"
    assert worker.newest() == "a"
