"""How a description is carried out: addresses in bulk, then each step on its own.

The way of a batch: step -> addresses -> gather -> stages -> buffer.  `compile` turns nodes into
operators, `IndexPlan` runs them for one step at a time, from any thread.
"""

from loaderx.reading.index_plan import IndexPlan

__all__ = ["IndexPlan"]
