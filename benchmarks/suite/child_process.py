"""Asks `child.py` for one measurement, in the contender's own interpreter."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from suite import tree
from suite.entry import Entry
from suite.environments import last_line
from suite.settings import Settings

BENCHMARKS = Path(__file__).resolve().parents[1]
CHECK_RECORDS = 20_000
SAMPLE_S = 0.05


def ask(
    settings: Settings, entry: Entry, mode: str, sample: bool = False, **more: Any
) -> dict[str, Any] | None:
    """What a measurement answers, or None after it has failed."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        asked, answered = folder / "request.json", folder / "answer.json"
        asked.write_text(json.dumps(request_for(settings, entry, mode) | more))
        outcome = tree.run(
            [str(entry.python), str(BENCHMARKS / "child.py"), str(asked), str(answered)],
            environment_of(settings, folder),
            folder,
            settings.timeout_s * (3 if mode in ("save", "prepare") else 1),
            SAMPLE_S if sample else None,
        )
        if outcome.late:
            reason = f"{mode}: not ready after {outcome.took_s:.0f} s, and ended"
            return entry.fail("error", reason, outcome.errors)
        if not answered.exists():
            reason = last_line(outcome.errors) or f"exit code {outcome.code}"
            return entry.fail("error", f"{mode}: {reason}", outcome.errors)
        answer: dict[str, Any] = json.loads(answered.read_text())
    if "unsupported" in answer:
        return entry.fail("unavailable", answer["unsupported"])
    entry.versions = answer["versions"]
    entry.import_s = answer["import_s"]
    entry.note = answer.get("note", entry.note)
    if sample:
        entry.peak_mb = outcome.peak_mb
    return answer


def request_for(settings: Settings, entry: Entry, mode: str) -> dict[str, Any]:
    records = settings.records(entry.workload)
    return {
        "contender": entry.key,
        "file": getattr(entry.contender, "FILE", None),
        "workload": entry.workload.name,
        "variant": entry.variant,
        "data": str(settings.data),
        "mode": mode,
        "records": records,
        "sizes": settings.sizes(entry.workload),
        "seconds": settings.seconds or entry.seconds,
        "check_records": min(CHECK_RECORDS, records),
    }


def environment_of(settings: Settings, folder: Path) -> dict[str, str]:
    """That of the caller; our sources first, and compiled files kept with the data."""
    found = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    path = [str(BENCHMARKS.parent / "src"), *filter(None, [found.get("PYTHONPATH")])]
    return found | {
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONPYCACHEPREFIX": str(settings.data.parent / "pycache"),
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HOME": str(settings.data.parent / "hf-home"),
        "TMPDIR": str(folder),
    }
