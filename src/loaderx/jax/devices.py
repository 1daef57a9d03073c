"""The devices that JAX finds, in words."""

from __future__ import annotations

from collections import Counter

import jax


def device_names() -> list[str]:
    """The devices of this process, such as ``"4 x gpu: NVIDIA H100"``.  Asking starts them."""
    found = Counter(f"{one.platform}: {one.device_kind}" for one in jax.local_devices())
    return [f"{count} x {name}" for name, count in found.items()]
