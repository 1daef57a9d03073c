"""One measurement, in a process of its own.  `run.py` starts it, in the contender's environment.

    python child.py REQUEST.json ANSWER.json

Nothing is imported here but NumPy and the contender.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

from suite.checks import MASK, Digest, touch
from suite.workloads import WORKLOADS, Job, Record, Unsupported, Workload


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    begun = perf_counter()
    contender = importlib.import_module(f"contenders.{request['contender']}")
    contender.begin()
    answer: dict[str, Any] = {
        "import_s": perf_counter() - begun,
        "versions": {name: metadata.version(name) for name in contender.VERSIONS},
    }
    workload = WORKLOADS[request["workload"]]
    job = Job(
        workload=workload.does,
        variant=request["variant"],
        data=Path(request["data"]),
        batch_size=workload.batch_size,
        records=request["records"],
        epochs=request.get("epochs", 1),
    )
    try:
        answer |= MODES[request["mode"]](contender, job, workload, request)
    except Unsupported as reason:
        answer["unsupported"] = str(reason)
    Path(sys.argv[2]).write_text(json.dumps(answer))


def used_cpu() -> float:
    """Of this process and of its children that have ended."""
    own, ended = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime


# Streams ------------------------------------------------------------------------------------------


def run(contender: Any, job: Job) -> dict[str, Any]:
    """Loads all epochs against the clock, and touches every byte.

    The clock starts before the loader is made.  The rate is that of all that follows the first
    batch, new epochs included.
    """
    records = total = 0
    cpu = used_cpu()
    begun = perf_counter()
    stream = iter(getattr(contender, job.workload)(job))
    first = next(stream)
    arrived = perf_counter()
    total += touch(first)
    early = rows(first)
    del first
    for batch in stream:
        total += touch(batch)
        records += rows(batch)
    ended = perf_counter()
    del batch
    return {
        "first_s": arrived - begun,
        "rest_s": ended - arrived,
        "rest_records": records,
        "records": records + early,
        "sum": total & MASK,
        "cpu_before": cpu,
    }


def rows(batch: Record) -> int:
    return len(next(iter(batch.values())))


def timed(contender: Any, job: Job, workload: Workload, request: dict[str, Any]) -> dict[str, Any]:
    return {**run(contender, job), "note": contender.note()}


def check(contender: Any, job: Job, workload: Workload, request: dict[str, Any]) -> dict[str, Any]:
    """How many records and epochs to measure, and a digest of one epoch of them."""
    sizes = request["sizes"]
    seconds = request["seconds"]
    small = run(contender, replace(job, records=sizes[0], epochs=1))
    rate = speed(small)
    chosen = max([size for size in sizes if size <= rate * seconds], default=sizes[0])
    if chosen > sizes[0]:
        rate = speed(run(contender, replace(job, records=chosen, epochs=1)))
    digest = Digest()
    for batch in getattr(contender, job.workload)(replace(job, records=chosen, epochs=1)):
        digest.add(batch)
    return {
        "size": chosen,
        "epochs": max(1, round(seconds * rate / chosen)),
        "digest": digest.result(),
        "note": contender.note(),
    }


def speed(result: dict[str, Any]) -> float:
    """With the first batch: what was made ahead of it must not count twice in a short run."""
    return float(result["records"] / (result["first_s"] + result["rest_s"]))


def once(contender: Any, job: Job, workload: Workload, request: dict[str, Any]) -> dict[str, Any]:
    """Both in one process, for a quick look."""
    checked = check(contender, job, workload, request)
    again = replace(job, records=checked["size"], epochs=checked["epochs"])
    return checked | run(contender, again)


def reference(
    contender: Any, job: Job, workload: Workload, request: dict[str, Any]
) -> dict[str, Any]:
    """What one epoch of so many records must come to."""
    digest, total = Digest(), 0
    for batch in getattr(contender, job.workload)(replace(job, epochs=1)):
        digest.add(batch)
        total += touch(batch)
    return {"digest": digest.result(), "sum": total & MASK}


def prepare(
    contender: Any, job: Job, workload: Workload, request: dict[str, Any]
) -> dict[str, Any]:
    contender.prepare(job)
    return {}


# Resuming -----------------------------------------------------------------------------------------


def stopping_step(job: Job) -> int:
    return job.records * 9 // 10 // job.batch_size


def save(contender: Any, job: Job, workload: Workload, request: dict[str, Any]) -> dict[str, Any]:
    """Writes the state at 90 % into a folder; and checks, on few records, that it can be trusted."""
    small = replace(job, records=request["check_records"])
    with tempfile.TemporaryDirectory() as folder:
        contender.save(small, stopping_step(small), Path(folder))
        rest = contender.restore(small, stopping_step(small), Path(folder))
        restored = [batch["value"].tolist() for batch in rest]
    whole = [batch["value"].tolist() for batch in contender.stream(small)]
    expected = whole[stopping_step(small) :]
    numbers = sorted(number for batch in whole for number in batch)
    folder = Path(request["state"])
    contender.save(job, stopping_step(job), folder)
    return {
        "exact": restored == expected,
        "permutation": numbers == list(range(small.records)),
        "state_bytes": sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
    }


def restore(
    contender: Any, job: Job, workload: Workload, request: dict[str, Any]
) -> dict[str, Any]:
    cpu = used_cpu()
    begun = perf_counter()
    stream: Iterator[Record] = iter(
        contender.restore(job, stopping_step(job), Path(request["state"]))
    )
    (batch,) = islice(stream, 1)
    total = touch(batch)
    return {
        "first_s": perf_counter() - begun,
        "records": rows(batch),
        "sum": total,
        "cpu_before": cpu,
        "note": contender.note(),
    }


MODES = {
    "timed": timed,
    "check": check,
    "once": once,
    "reference": reference,
    "prepare": prepare,
    "save": save,
    "restore": restore,
}


if __name__ == "__main__":
    main()
