"""Images in NumPy: functions for `map` and `random_map`."""

from loaderx.normalization import normalize

__all__ = ["normalize"]
