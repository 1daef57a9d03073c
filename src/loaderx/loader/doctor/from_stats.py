"""A diagnosis from a loader's statistics alone: nothing is replayed, and nothing was traced."""

from __future__ import annotations

from loaderx.engines.base import Work, cores
from loaderx.loader.doctor.causes import diagnose, stages_in_loop, user_stages
from loaderx.loader.doctor.diagnosis import Diagnosis
from loaderx.loader.doctor.evidence import Evidence
from loaderx.loader.stats import Stats

UNKNOWN = "whether functions work or wait, and all but stages (run `loaderx doctor`)"


def diagnosis(stats: Stats, work: Work | None) -> Diagnosis:
    """What the statistics tell; waits stand for the headspace."""
    if work is None or stats.batches < 2:
        return diagnose(Evidence(stats.engine, 0.0, 0.0, is_measured=False))
    each = 1.0 / stats.batches
    stages = {name: seconds * each for name, seconds in stats.stage_s.items()}
    evidence = Evidence(
        engine=stats.engine,
        step_s=stats.seconds * each,
        gap_s=stats.waited_s * each,
        is_measured=False,
        stage_s=stages,
        in_loop_s={stage: stages.get(stage, 0.0) for stage in stages_in_loop(work)},
        cpu_s=sum(stages.values()),
        user_stages=user_stages(work),
        cores=cores(),
        missing=frozenset([UNKNOWN]),
    )
    return diagnose(evidence)
