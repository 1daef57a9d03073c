"""`device_put`: elements on devices, copied ahead."""

from __future__ import annotations

from importlib import import_module

from loaderx.compat.grain.iter_dataset import IterDataset
from loaderx.compat.grain.protocols import Element
from loaderx.compat.grain.thread_prefetch import ThreadPrefetchIterDataset
from loaderx.errors import MissingPackageError


def device_put(
    ds: IterDataset[Element],
    device: Element,
    *,
    cpu_buffer_size: int = 4,
    device_buffer_size: int = 2,
) -> IterDataset[Element]:
    """The elements of a dataset as ``jax.Array``.

    Args:
        ds: the dataset.
        device: a device or a sharding, as `jax.device_put` takes it.
        cpu_buffer_size: elements made ahead.
        device_buffer_size: elements copied to the devices ahead.
    """
    try:
        put = import_module("jax").device_put
    except ImportError as error:
        raise MissingPackageError("device_put needs jax: pip install 'loaderx-jax[jax]'") from error
    ahead = ThreadPrefetchIterDataset(ds, prefetch_buffer_size=cpu_buffer_size)
    placed = ahead.map(lambda element: put(element, device))
    return ThreadPrefetchIterDataset(placed, prefetch_buffer_size=device_buffer_size)
