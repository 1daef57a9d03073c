"""seed: the default seed of a chain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaderx.chain.families import KeepsPlaces
from loaderx.reading.batch_readers import BatchReader
from loaderx.reading.operators import BatchOperator, RecordOperator, Request

if TYPE_CHECKING:
    from loaderx.chain.stream_build import Above, MakeReader, StreamBuild


class Seeded(KeepsPlaces):
    """Sets the default seed of its chain, for stages above and below."""

    number: int

    unit_cost = "nothing"
    can_drop = False
    user_objects = ()

    @property
    def stage(self) -> str:
        return f"seed({self.number})"

    def fingerprint(self, seed: int) -> str:
        return ""  # the stages that use the seed name it

    @property
    def default_seed_here(self) -> int | None:
        return self.number

    def make_record_operator(self, request: Request) -> RecordOperator:
        return self.input.record_operator(request)

    def batch_operator(self, request: Request) -> BatchOperator:
        return self.input.batch_operator(request)

    def reader(self, build: StreamBuild, above: Above) -> MakeReader:
        return build.reader(self.input, above)

    def after_batch(self, below: BatchReader, build: StreamBuild) -> BatchReader:
        return below


def seed_of(own: int | None, default: int) -> int:
    """The seed of a stage: its own if it has one, or the default of its chain."""
    return default if own is None else own
