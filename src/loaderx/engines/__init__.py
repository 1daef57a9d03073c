"""How the work of a loader is carried out.

An engine opens a session for the work of a loader; a session takes tasks and gives their results.
Which engine runs is never visible in the data.
"""

from loaderx.engines.auto import Auto
from loaderx.engines.base import Engine, Measured, Pending, Session, Task, Work
from loaderx.engines.inline import Inline
from loaderx.engines.processes import Processes
from loaderx.engines.shared import Shared
from loaderx.engines.threads import Threads
from loaderx.memory import PoolPerThread

__all__ = [
    "Auto",
    "Engine",
    "Inline",
    "Measured",
    "Pending",
    "PoolPerThread",
    "Processes",
    "Session",
    "Shared",
    "Task",
    "Threads",
    "Work",
]
