"""Shardings of eight devices made of one CPU, and datasets to place on them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from loaderx import Dataset


def rows(*spec: Any, shape: tuple[int, ...] = (8,), names: tuple[str, ...] = ("data",)) -> Any:
    mesh = Mesh(np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape), names)
    return NamedSharding(mesh, PartitionSpec(*spec))


def table(count: int = 80) -> Dataset[Any]:
    x = np.arange(count * 4, dtype=np.float32).reshape(count, 4)
    return Dataset.from_arrays(x=x, label=np.arange(2 * count, dtype=np.int32).reshape(count, 2))


def filtered() -> Dataset[Any]:
    dataset = Dataset.range(4000).map(lambda x: {"x": x, "wide": x * 1.5})
    return dataset.filter(lambda r: r["x"] % 3 != 0).repeat().batch(8, lanes=2)
