"""The class for Keras in docs/jax.md, as it stands there, read from several threads."""

from __future__ import annotations

import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from loaderx import DataLoader, Dataset

PAGE = Path(__file__).parents[2] / "docs" / "jax.md"


class PyDataset:
    """What the class needs of Keras, which is not installed everywhere."""

    def __init__(self, workers=1):
        self.workers = workers


@pytest.fixture
def batches_class():
    code = re.search(r"^class Batches\(.*?(?=^\n?^model\.fit)", PAGE.read_text(), re.S | re.M)
    keras = SimpleNamespace(utils=SimpleNamespace(PyDataset=PyDataset))
    found = {"keras": keras, "threading": threading}
    exec(code[0], found)
    return found["Batches"]


@pytest.fixture
def many_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("many_switches")
def test_threads_get_every_batch_once_and_in_its_place(batches_class):
    dataset = Dataset.range(1000).shuffle(seed=0).batch(5)
    expected = [batch.tolist() for batch in dataset.repeat(2)]
    found = []
    with DataLoader(dataset, engine="inline") as loader, ThreadPoolExecutor(4) as pool:
        batches = batches_class(loader, workers=4)
        for _ in range(2):
            found += [batch.tolist() for batch in pool.map(batches.__getitem__, range(200))]
            batches.on_epoch_end()
    assert found == expected
    assert np.unique(np.concatenate(found[:200])).size == 1000
