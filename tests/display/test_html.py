"""Datasets and loaders in notebooks."""

from __future__ import annotations

import re

import numpy as np

from loaderx import DataLoader, Dataset


def test_a_chain_as_boxes_with_its_first_records():
    dataset = Dataset.from_source([{"text": f"<script>{n}</script>"} for n in range(9)])
    told = dataset.shuffle(seed=3).map(lambda r: r)._repr_html_()
    boxes = re.findall(r'<div class="stage">([^<]*)</div>', told)
    assert boxes == [
        "Dataset.from_source(list, 9 records)",
        "shuffle(seed=3)",
        "map(&lt;lambda&gt;)",
    ]
    assert "9 records" in told
    assert told.count("&lt;script&gt;") == 3
    assert "<script" not in told


def test_components_stand_inside_of_their_join():
    joined = Dataset.mix([Dataset.range(3), Dataset.range(9).shuffle(1)], [1, 2]).batch(2)
    told = joined._repr_html_()
    assert told.index("Dataset.mix") < told.index("shuffle(seed=1)") < told.index("batch(2)")
    assert told.count("<div") == told.count("</div>")


def test_batches_and_streams_are_not_made():
    def refuse(record):
        raise AssertionError("a notebook must not read this")

    for dataset in (Dataset.range(9).map(refuse).batch(3), Dataset.range(9).filter(refuse)):
        assert ".show() makes the first" in dataset._repr_html_()
    known = Dataset.from_arrays(x=np.zeros((9, 2))).batch(3)._repr_html_()
    assert "<th>x</th><td>float64[3,2]</td>" in known


def test_an_error_is_shown():
    told = Dataset.range(3).map(lambda x: 1 // 0)._repr_html_()
    assert (
        "the first records cannot be read: RecordError: step 0: map(&lt;lambda&gt;) failed" in told
    )
    assert "ZeroDivisionError" in told


def test_a_loader():
    told = DataLoader(Dataset.range(9).batch(3), engine="threads")._repr_html_()
    assert told.startswith("<p>DataLoader(Threads(")
    assert "batch(3)" in told
