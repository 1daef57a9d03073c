"""How the work of a loader is carried out.

An engine opens a session for the work of a loader; a session takes tasks and gives their results.
Which engine runs is never visible in the data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaderx.engines.auto import Auto
from loaderx.engines.base import Engine, Measured, Pending, Session, Task, Work
from loaderx.engines.inline import Inline
from loaderx.engines.processes import Processes
from loaderx.engines.threads import Threads
from loaderx.memory import PoolPerThread

if TYPE_CHECKING:
    from loaderx.engines.elsewhere.executor import Executor
    from loaderx.engines.elsewhere.ray_engine import Ray
    from loaderx.engines.shared_engine import Shared

__all__ = [
    "Auto",
    "Engine",
    "Executor",
    "Inline",
    "Measured",
    "Pending",
    "PoolPerThread",
    "Processes",
    "Ray",
    "Session",
    "Shared",
    "Task",
    "Threads",
    "Work",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    if name == "Shared":  # late: most loaders have workers of their own
        from loaderx.engines.shared_engine import Shared

        return Shared
    if name == "Executor":
        from loaderx.engines.elsewhere.executor import Executor

        return Executor
    if name == "Ray":
        from loaderx.engines.elsewhere.ray_engine import Ray

        return Ray
    raise AttributeError(f"module 'loaderx.engines' has no attribute {name!r}")
