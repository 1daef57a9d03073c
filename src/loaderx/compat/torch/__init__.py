"""`torch.utils.data.DataLoader` for JAX: NumPy batches, made by loaderx.

It takes torch's arguments, datasets and samplers, and does not import torch.  ``docs/torch.md``
says which line to change, and what differs.

The other names of `torch.utils.data` (`Subset`, `random_split`, samplers) can be imported from here
as well: they are torch's own, and torch is imported with the first of them.
"""

from __future__ import annotations

import importlib
from typing import Any

from loaderx import MissingPackageError
from loaderx.compat.torch.collate import default_collate, default_convert, numpy_collate
from loaderx.compat.torch.loader import DataLoader, Dataset, get_worker_info

__all__ = [
    "DataLoader",
    "Dataset",
    "default_collate",
    "default_convert",
    "get_worker_info",
    "numpy_collate",
]

# What a program without torch writes for torch's own names; ds is a loaderx.Dataset.
_OTHERWISE = {
    "BatchSampler": "any iterable of lists of indices, as batch_sampler=",
    "ChainDataset": "loaderx.Dataset.concatenate([a, b])",
    "ConcatDataset": "loaderx.Dataset.concatenate([a, b])",
    "DistributedSampler": "loaderx.DataLoader(ds, shard=(host, hosts))",
    "IterableDataset": "a class of your own with __iter__",
    "RandomSampler": "shuffle=True",
    "Sampler": "any iterable of indices, as sampler=",
    "SequentialSampler": "shuffle=False",
    "StackDataset": "loaderx.Dataset.zip(a, b)",
    "Subset": "ds[indices]",
    "SubsetRandomSampler": "ds[indices] and shuffle=True",
    "TensorDataset": "loaderx.Dataset.from_arrays(x, y)",
    "WeightedRandomSampler": "ds.sample(weights, n)",
    "random_split": "ds.split(0.8, 0.2)",
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _OTHERWISE:
        raise AttributeError(
            f"module 'loaderx.compat.torch' has no attribute {name!r}. What it does not have of "
            "torch.utils.data is imported from there, and its DataLoader takes it.",
            name=name,
        )
    try:
        data = importlib.import_module("torch.utils.data")
    except ImportError as error:
        raise MissingPackageError(
            f"{name} is torch's own: pip install torch. Without torch write {_OTHERWISE[name]}, "
            "where ds is a loaderx.Dataset: the DataLoader here takes those as well."
        ) from error
    return getattr(data, name)
