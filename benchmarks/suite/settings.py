"""What a run was asked for: its sizes, its folders, its patience."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from suite.workloads import WORKLOADS, Workload


@dataclass(frozen=True, slots=True)
class Settings:
    quick: bool
    tiny: bool
    rounds: int
    timeout_s: float
    seconds: float | None
    """Of a measurement, its start aside; None: as the workload says."""
    data: Path
    envs: Path

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> Settings:
        data = Path(options.data).resolve() / ("quick" if options.quick else "full")
        return cls(
            quick=options.quick,
            tiny=options.tiny,
            rounds=1 if options.quick else options.rounds,
            timeout_s=options.timeout,
            seconds=options.seconds,
            data=data,
            envs=Path(options.envs).resolve(),
        )

    def records(self, workload: Workload) -> int:
        count = workload.quick_records if self.quick else workload.records
        return max(4 * workload.batch_size, count // 8) if self.tiny else count

    def sizes(self, workload: Workload) -> list[int]:
        """Numbers of records to choose from: slow contenders take fewer."""
        most = self.records(workload)
        if workload.cold:
            return [most]
        least = min(most, (4 if self.quick else workload.least) * workload.batch_size)
        return sorted({max(most >> shift, least) for shift in (0, 2, 4, 6)})

    def largest(self, does: str) -> int:
        """The most records of any workload that a contender's function serves."""
        return max(self.records(one) for one in WORKLOADS.values() if one.does == does)
