"""The stages of a dataset, one file each: node, argument checks, and how it is carried out.

Public is `WindowStage`, the base class for stages of your own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loaderx.stages.window_stage import WindowStage

__all__ = ["WindowStage"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    if name == "WindowStage":  # late: most programs write no stage of their own
        from loaderx.stages import window_stage

        return window_stage.WindowStage
    raise AttributeError(f"module 'loaderx.stages' has no attribute {name!r}")
