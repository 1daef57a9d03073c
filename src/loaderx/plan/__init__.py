"""How a description is carried out: addresses in bulk, then each step on its own.

The way of a batch: step -> addresses -> gather -> stages -> buffer.  `compile` turns nodes into
operators, `Plan` runs them for one step at a time, from any thread.
"""

from loaderx.plan.plan import Plan

__all__ = ["Plan"]
