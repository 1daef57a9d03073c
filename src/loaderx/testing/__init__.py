"""Tests for sources, stages and engines of your own: subclass a contract, and run pytest.

`SourceContract` holds the tests of a source, `StageContract` those of a stage of a stream,
`IndexStageContract` those of a stage that is read by index, `EngineContract` those of an engine.
Nothing here imports pytest.
"""

from __future__ import annotations

from loaderx.testing.engine_contract import EngineContract
from loaderx.testing.index_stage_contract import IndexStageContract
from loaderx.testing.source_contract import SourceContract
from loaderx.testing.stage_contract import StageContract

__all__ = ["EngineContract", "IndexStageContract", "SourceContract", "StageContract"]


def __dir__() -> list[str]:
    return __all__
