"""`torch.utils.data.DataLoader` for JAX: NumPy batches, made by loaderx.

It takes torch's arguments, datasets and samplers, and does not import torch.  ``docs/torch.md``
says which line to change, and what differs.
"""

from __future__ import annotations

from typing import NoReturn

from loaderx.compat.torch.collate import default_collate, default_convert, numpy_collate
from loaderx.compat.torch.loader import DataLoader, Dataset

__all__ = ["DataLoader", "Dataset", "default_collate", "default_convert", "numpy_collate"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> NoReturn:
    advice = ""
    if name[:1].isupper() or name == "random_split":
        advice = f". Import it from torch.utils.data: the DataLoader here takes torch's {name}"
    raise AttributeError(f"module 'loaderx.compat.torch' has no attribute {name!r}{advice}")
