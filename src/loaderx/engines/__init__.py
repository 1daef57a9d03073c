"""How the work of a loader is carried out.

One protocol: an engine gets work (a function of a step) and the steps to do, and gives the results
back in the order of the steps.  Which engine runs is never visible in the data.
"""

from loaderx.engines.auto import Auto
from loaderx.engines.base import Engine, Noted, Run, Work, Workshop
from loaderx.engines.inline import Inline
from loaderx.engines.processes import Processes
from loaderx.engines.threads import Threads

__all__ = ["Auto", "Engine", "Inline", "Noted", "Processes", "Run", "Threads", "Work", "Workshop"]
