"""Rows of scipy's sparse matrices: dense records, as `toarray` has them."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from inside import source_of
from loaderx import ArgumentTypeError, DataLoader, Dataset, engines
from loaderx.testing import SourceContract

X = sp.random(40, 7, 0.3, format="csr", random_state=np.random.default_rng(0), dtype=np.float32)
DENSE = X.toarray()


class TestRows(SourceContract):
    def make_source(self):
        return source_of(Dataset.from_arrays(x=X, y=np.arange(40)))

    def expected_records(self):
        return [{"x": x, "y": y} for x, y in zip(DENSE, np.arange(40), strict=True)]


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr", "lil", "dia", "dok"])
@pytest.mark.parametrize("container", [sp.csr_array, sp.csr_matrix])
def test_every_format(kind, container):
    matrix = container(X).asformat(kind)
    for dataset in (Dataset.from_arrays(matrix), Dataset.from_source(matrix)):
        assert str(dataset.element_spec) == "float32[7]"
        (batch,) = dataset.batch(40)
        assert np.array_equal(batch, DENSE)
        assert np.array_equal(dataset[[5, 30, 5]].batch(3)[0], DENSE[[5, 30, 5]])


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=12))
def test_values_of_one_cell_are_added(cells):
    """As scipy does: the pieces of a cell, empty rows, columns in any order."""
    rows, columns = [row for row, _ in cells], [column for _, column in cells]
    order = np.argsort(rows, kind="stable")
    ends = np.searchsorted(np.sort(np.array(rows, int)), np.arange(6))
    matrix = sp.csr_array(
        (np.arange(1, len(cells) + 1), np.array(columns, int)[order], ends), shape=(5, 4)
    )
    stored = matrix.data.copy()
    (batch,) = Dataset.from_arrays(matrix).batch(5)
    assert np.array_equal(batch, matrix.toarray())
    assert np.array_equal(matrix.data, stored)  # that of the user is as it was


@pytest.mark.parametrize("engine", [engines.Threads(2), engines.Processes(2)], ids=type)
def test_every_engine(engine):
    dataset = Dataset.from_arrays(x=X, y=np.arange(40)).shuffle(0).batch(8)
    with DataLoader(dataset, engine=engine) as loader:
        for batch in loader:
            assert np.array_equal(batch["x"], DENSE[batch["y"]])


def test_an_array_with_one_axis_has_no_rows():
    with pytest.raises(ArgumentTypeError, match=r"a sparse array of shape \(4,\) has no rows"):
        Dataset.from_arrays(x=sp.coo_array(np.arange(4)))
