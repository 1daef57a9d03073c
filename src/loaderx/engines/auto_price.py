"""What worker processes cost before they do anything.

A worker starts Python and imports what the work needs.  Most of that is importing, and about a
millisecond a module, whoever's module it is.  Which modules these are can be seen here, where they
are loaded: those that the user's objects come from, and all that they refer to.  So a source of a
package that takes seconds to import is known as such before a process is started for it.  Once a
worker has started, its own clock is better, and is used instead.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from loaderx.engines.base import Work
from loaderx.given import reachable

MODULE_S = 1e-3
BARE_MODULES = 250  # Python, NumPy and loaderx in a worker
SHARED_BYTES_PER_S = 1e9


class Price:
    """What is known of it, by estimate or by measurement."""

    def __init__(self, start_s: float, share_s: float) -> None:
        self.start_s = start_s
        self.share_s = share_s


def estimate(work: Work) -> Price:
    """The price for a loader's work."""
    found = [value for _, part in work.parts() for value in reachable(part)]
    modules = imported_with(origins(found), sys.modules)
    arrays = [value for value in found if isinstance(value, np.ndarray)]
    data = {id(array): array.nbytes for array in arrays if _is_shared(array)}
    return Price(MODULE_S * (BARE_MODULES + len(modules)), sum(data.values()) / SHARED_BYTES_PER_S)


def _is_shared(value: Any) -> bool:
    """Is it an array that is copied into shared memory?  Mapped files are not."""
    if not isinstance(value, np.ndarray):
        return False
    while value is not None:
        if isinstance(value, np.memmap):
            return False
        value = getattr(value, "base", None)
    return True


def origins(values: Iterable[Any]) -> Iterator[str]:
    """The modules that a worker imports to have these."""
    for value in values:
        if isinstance(value, types.ModuleType):
            yield value.__name__
        elif isinstance(value, (type, types.FunctionType)):
            yield value.__module__
        else:
            yield type(value).__module__


def imported_with(names: Iterable[str], loaded: Mapping[str, Any]) -> set[str]:
    """The loaded modules that importing some of them loads; without what each worker has."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        top = name.partition(".")[0] if type(name) is str else ""
        if not top or top in _BARE or name in found or name not in loaded:
            continue
        found.add(name)
        parent = name.rpartition(".")[0]
        if parent:
            waiting.append(parent)
        for held in list(getattr(loaded[name], "__dict__", {}).values()):
            # Not `isinstance`, which asks `held.__class__`: torch has objects that warn then.
            if issubclass(type(held), types.ModuleType):
                waiting.append(held.__name__)
            elif issubclass(type(held), (type, types.FunctionType)):
                waiting.append(held.__module__)
    return found


# The script is not imported: what it defines is sent by value.
_BARE = frozenset(sys.stdlib_module_names) | {"__main__", "loaderx", "numpy", "cloudpickle"}
