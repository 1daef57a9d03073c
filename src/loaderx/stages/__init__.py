"""The stages of a dataset, one file each: node, argument checks, and how it is carried out.

Public is `WindowStage`, the base class for stages of your own.
"""

from loaderx.stages.window_stage import WindowStage

__all__ = ["WindowStage"]
