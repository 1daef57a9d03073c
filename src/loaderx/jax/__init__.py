"""Batches on devices, on one host or many.  The only part of loaderx that imports jax.

It is imported when ``DataLoader(sharding=...)`` or ``loaderx.jax`` is first used.
"""

from loaderx.errors import MissingPackageError

try:
    import jax  # noqa: F401
except ImportError as error:
    raise MissingPackageError(
        f"placing batches on devices needs jax, which cannot be imported ({error}). "
        "Write: pip install jax"
    ) from error

from loaderx.jax import image
from loaderx.jax.augmentation import augment
from loaderx.jax.fleet import Fleet, Host, fleet
from loaderx.jax.noise import normal
from loaderx.jax.shards import shard_of

__all__ = ["Fleet", "Host", "augment", "fleet", "image", "normal", "shard_of"]


def __dir__() -> list[str]:
    return __all__
