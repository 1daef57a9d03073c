"""One measurement, in a process of its own.  `run.py` starts it, in the contender's environment.

    python child.py REQUEST.json ANSWER.json

Nothing is imported here but NumPy and the contender.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from suite import tree
from suite.augmented import Effects
from suite.checks import Digest, Touch, touch
from suite.file_checks import Seen, count_documents
from suite.packing import SEGMENTS
from suite.training import TrainingStep
from suite.workloads import WORKLOADS, Job, Record, UnsupportedError, Workload

MOST_S = 30.0  # of a stream that is run to find out how fast it is
SHORT_S = 0.4  # of the stream of one epoch that the long one is compared with


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    begun = perf_counter()
    contender = imported(request)
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
        url=request.get("url", ""),
    )
    try:
        answer |= MODES[request["mode"]](contender, job, workload, request)
    except UnsupportedError as reason:
        answer["unsupported"] = str(reason)
    Path(sys.argv[2]).write_text(json.dumps(answer))


def imported(request: dict[str, Any]) -> Any:
    """One of our contenders, or a file of somebody else's."""
    if not request.get("file"):
        return importlib.import_module(f"contenders.{request['contender']}")
    sys.path.insert(0, str(Path(request["file"]).parent))
    return importlib.import_module(Path(request["file"]).stem)


# Streams ------------------------------------------------------------------------------------------


def run(contender: Any, job: Job) -> dict[str, Any]:
    """Loads all epochs against the clock, and touches every byte.

    The clock starts before the loader is made and stops after its last batch.  Arrays in memory
    are read before it.  CPU time is that of all processes between the same two moments.
    """
    preload(contender, job)
    consume = consumer(job)
    cpu = tree.CpuClock()
    begun = perf_counter()
    stream = iter(getattr(contender, job.workload)(job))
    batch = next(stream)
    first = perf_counter() - begun
    records = rows(batch)
    consume(batch)
    for batch in stream:
        consume(batch)
        records += rows(batch)
    total = consume.total()
    seconds = perf_counter() - begun
    return {
        "first_s": first,
        "seconds": seconds,
        "cpu_s": cpu.elapsed_s(),
        "records": records,
        "sum": total,
    }


def consumer(job: Job) -> Touch | TrainingStep:
    """What takes the batches; it is compiled, if need be, before the clock starts."""
    return TrainingStep(job.batch_size) if job.workload == "step" else Touch()


def preload(contender: Any, job: Job) -> None:
    """Reads what is in memory; a contender with files of its own reads those instead."""
    if job.workload not in getattr(contender, "OWN_FILES", ()):
        job.preload()


def rows(batch: Record) -> int:
    """The records of a batch: of packed rows, the documents in them."""
    if SEGMENTS in batch:
        return count_documents(batch)
    return len(next(iter(batch.values())))


def slope(short: dict[str, Any], long: dict[str, Any]) -> dict[str, float]:
    """Records per second, and CPU seconds per record, between a short and a long stream.

    Both begin with a new loader and end with its last batch, so that the difference has neither
    the start of workers in it nor what was made ahead of the first batch.
    """
    records, seconds, cpu = (long[name] - short[name] for name in ("records", "seconds", "cpu_s"))
    disturbed = seconds < 0.5 * long["seconds"] * records / long["records"]
    if records <= 0 or cpu <= 0 or disturbed:
        records, seconds, cpu = (long[name] for name in ("records", "seconds", "cpu_s"))
    return {"rate": records / seconds, "cpu_per_record": cpu / records}


def rate(short: dict[str, Any], long: dict[str, Any]) -> float:
    return slope(short, long)["rate"]


def timed(contender: Any, job: Job, workload: Workload, request: dict[str, Any]) -> dict[str, Any]:
    if workload.cold:
        return {**one_pass(contender, job), "note": contender.note()}
    cold = run(contender, replace(job, records=request["sizes"][0], epochs=1))
    return {**measured(contender, job), "first_s": cold["first_s"], "note": contender.note()}


def one_pass(contender: Any, job: Job) -> dict[str, Any]:
    """One pass that finds nothing of an earlier one; its start belongs to it."""
    found = run(contender, job)
    records = found["records"]
    return {
        **found,
        "rate": records / found["seconds"],
        "cpu_per_record": found["cpu_s"] / records,
    }


def short_run(contender: Any, job: Job) -> dict[str, Any]:
    """A short stream.  What compiles code runs twice; its first batch is that of the first run."""
    cold = run(contender, job)
    if not hasattr(contender, "warm"):
        return cold
    return {**run(contender, job), "first_s": cold["first_s"]}


def measured(contender: Any, job: Job) -> dict[str, Any]:
    """A long stream against one of a single epoch, after one that nobody looks at has run."""
    warm(contender, job)
    once = run(contender, replace(job, epochs=1))
    gc.collect()
    long = run(contender, job)
    return {**long, **slope(once, long)}


def warm(contender: Any, job: Job) -> None:
    """Some compile code for every new number of records: no part of the steady rate."""
    if hasattr(contender, "warm"):
        contender.warm(job)


def check(contender: Any, job: Job, workload: Workload, request: dict[str, Any]) -> dict[str, Any]:
    """How many records and epochs to measure, and a digest of one epoch of them."""
    if workload.cold:
        digest = reference(contender, job, workload, request)
        return {"size": job.records, "epochs": 1, "note": contender.note(), **digest}
    sizes, seconds = request["sizes"], SHORT_S
    short = short_run(contender, replace(job, records=sizes[0], epochs=1))
    found = first_rate(contender, replace(job, records=sizes[0]), short, seconds)
    size = max([size for size in sizes if size <= found * seconds], default=sizes[0])
    if size > sizes[0]:
        warm(contender, replace(job, records=size))
        found = rate(short, run(contender, replace(job, records=size, epochs=1)))
    return {
        "size": size,
        "epochs": 1 + max(3, round(long_enough(short, request["seconds"]) * found / size)),
        "note": contender.note(),
        "short": short,
        **reference(contender, replace(job, records=size), workload, request),
    }


def long_enough(short: dict[str, Any], seconds: float) -> float:
    """How long a stream should take, its start aside: the slower the start, the longer."""
    return max(seconds, 0.5 * float(short["seconds"]))


def first_rate(contender: Any, job: Job, short: dict[str, Any], seconds: float) -> float:
    """A rate to choose sizes by.

    Workers may take seconds to start, and not always as many: the stream must be so long that this
    does not matter.
    """
    enough, epochs = max(0.5 * seconds, 0.3 * short["seconds"]), 2
    while True:
        longer = run(contender, replace(job, epochs=epochs))
        if longer["seconds"] - short["seconds"] >= enough or longer["seconds"] > MOST_S:
            return rate(short, longer)
        epochs *= 4


def several(
    contender: Any, job: Job, workload: Workload, request: dict[str, Any]
) -> dict[str, Any]:
    """All variants in one process, roughly, for a quick look.  A failure concerns its variant."""
    each: dict[str, Any] = {}
    look = look_at_resume if job.workload == "resume" else look_at_stream
    for variant in request["variants"]:
        try:
            each[variant] = look(contender, replace(job, variant=variant), workload, request)
        except UnsupportedError as reason:
            each[variant] = {"unsupported": str(reason)}
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            each[variant] = {"error": said, "errors": traceback.format_exc()}
    return {"each": each}


def look_at_stream(
    contender: Any, job: Job, workload: Workload, request: dict[str, Any]
) -> dict[str, Any]:
    few = replace(job, records=request["sizes"][0])
    if workload.cold:
        digest = reference(contender, few, workload, request)
        found = one_pass(contender, few)
        return {"size": few.records, "epochs": 1, **digest, **found, "note": contender.note()}
    return {
        "size": few.records,
        "epochs": 2,
        **measured(contender, replace(few, epochs=2)),
        **reference(contender, few, workload, request),
        "note": contender.note(),
    }


def look_at_resume(
    contender: Any, job: Job, workload: Workload, request: dict[str, Any]
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        asked = {**request, "state": folder}
        saved = save(contender, job, workload, asked)
        return saved | restore(contender, job, workload, asked)


def reference(
    contender: Any, job: Job, workload: Workload, request: dict[str, Any]
) -> dict[str, Any]:
    """What one epoch of so many records must come to."""
    digest, consume, shuffled = Digest(), consumer(job), False
    seen = Seen(job)
    effects = Effects(job.workload) if workload.own_draws else None
    for batch in getattr(contender, job.workload)(replace(job, epochs=1)):
        consume(batch)
        found = seen.add(batch)
        shuffled = shuffled or not in_order(job, found, digest.records)
        digest.add(found)
        if effects:
            effects.add(batch)
    seen.check()
    answer = {"digest": digest.result(), "epoch_sum": consume.total(), "shuffled": shuffled}
    return answer | ({"effects": effects.result()} if effects else {})


def in_order(job: Job, batch: Record, start: int) -> bool:
    """Are these the next records as they lie in the data?  A digest does not see that."""
    places = np.arange(start, start + rows(batch))
    if "label" in batch:
        return bool(np.array_equal(np.asarray(batch["label"]), places))
    if "tokens" in batch:
        return bool(np.array_equal(np.asarray(batch["tokens"]), job.open("tokens")[places]))
    return True


def prepare(
    contender: Any, job: Job, workload: Workload, request: dict[str, Any]
) -> dict[str, Any]:
    contender.prepare(job)
    return {}


# Resuming -----------------------------------------------------------------------------------------


def stopping_step(job: Job) -> int:
    return job.records * 9 // 10 // job.batch_size


def save(contender: Any, job: Job, workload: Workload, request: dict[str, Any]) -> dict[str, Any]:
    """Writes the state at 90 % into a folder, and tries on few records whether it is exact."""
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
        "shuffled": numbers != [number for batch in whole for number in batch],
        "state_bytes": sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
    }


def restore(
    contender: Any, job: Job, workload: Workload, request: dict[str, Any]
) -> dict[str, Any]:
    preload(contender, job)
    cpu = tree.CpuClock()
    begun = perf_counter()
    stream: Iterator[Record] = iter(
        contender.restore(job, stopping_step(job), Path(request["state"]))
    )
    (batch,) = islice(stream, 1)
    total = touch(batch)
    return {
        "first_s": perf_counter() - begun,
        "cpu_s": cpu.elapsed_s(),
        "records": rows(batch),
        "sum": total,
        "note": contender.note(),
    }


MODES = {
    "timed": timed,
    "check": check,
    "several": several,
    "reference": reference,
    "prepare": prepare,
    "save": save,
    "restore": restore,
}


if __name__ == "__main__":
    main()
