"""Windows are those of `keras.utils.timeseries_dataset_from_array` and of tf.data."""

from __future__ import annotations

import numpy as np
import pytest

from loaderx import Dataset

pytestmark = [pytest.mark.owners, pytest.mark.foreign]
tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

X = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
OPTIONS = [(5, 1, 0), (4, 3, 0), (3, 2, 4), (50, 1, 0), (1, 7, 2)]


@pytest.mark.parametrize(("n", "stride", "gap"), OPTIONS)
def test_windows_of_keras(n, stride, gap):
    keras = pytest.importorskip("keras", reason="Keras is not installed")
    theirs = keras.utils.timeseries_dataset_from_array(
        X, None, sequence_length=n, sequence_stride=stride, sampling_rate=gap + 1, batch_size=4
    )
    ours = Dataset.from_arrays(X).window(n, stride=stride, gap=gap).batch(4)
    for one, other in zip(ours, theirs.as_numpy_iterator(), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize(("n", "stride", "gap"), OPTIONS)
def test_windows_of_tf_data(n, stride, gap):
    windows = tf.data.Dataset.range(50).window(n, stride, gap + 1, drop_remainder=True)
    theirs = [list(window.as_numpy_iterator()) for window in windows]
    assert [one.tolist() for one in Dataset.range(50).window(n, stride=stride, gap=gap)] == theirs
