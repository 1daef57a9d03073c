"""A dataset whose records are found to be of other types late, for what is saved to URLs."""

from __future__ import annotations

import warnings

import numpy as np

from loaderx import Dataset

PART = 700  # bytes


def odd(index):
    """Types grow wider in some parts, by records that are not in the sample; one record fails."""
    number = int(index)
    return {
        "id": 1 // (number - 27) + number,
        "text": "é" * (number % 4),
        "tokens": np.arange(5 if number == 57 else 3),
        "early": [1] if number == 2 else None,
        "age": None if number == 55 else number,
        "image": b"png" * (number % 3),
    }


ODD = Dataset.range(60).map(odd).on_error("replace")


def save(place, engine="inline", shard=None, ds=ODD, part_bytes=PART):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ds.save(place, part_bytes=part_bytes, images=["image"], engine=engine, shard=shard)
