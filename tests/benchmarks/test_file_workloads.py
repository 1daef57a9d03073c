"""Workloads on files: whatever a library does in its own way, the check finds the same records."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.benchmarks

FOLDER = Path(__file__).parents[2] / "benchmarks"
ON_FILES = ("parquet_text", "imagefolder", "tfds", "jsonl_pack")


def digest(batches):
    from suite.checks import Digest

    made = Digest()
    for batch in batches:
        made.add(batch)
    return made.result()


def some_documents(count=60):
    from suite.file_workloads import texts, tokenise

    return [tokenise(text) for text in texts(1, count, 20, 600)]


def job(workload, tmp_path, records):
    from suite.workloads import WORKLOADS, Job

    return Job(workload, "best", tmp_path, WORKLOADS[workload].batch_size, records, 1)


def test_rows_are_packed_full_and_nothing_is_lost(suite):
    from suite.packing import POSITIONS, SEGMENTS, pack

    documents = some_documents()
    packed = pack(documents)
    assert packed[SEGMENTS].astype(bool).mean() > 0.9
    assert packed["tokens"].sum() == sum(int(document.sum()) for document in documents)
    row = packed["tokens"][0][packed[SEGMENTS][0] == 1]
    assert any(np.array_equal(row, document) for document in documents)
    assert packed[POSITIONS][0][: len(row)].tolist() == list(range(len(row)))


def test_it_does_not_matter_which_documents_share_a_row(suite):
    from suite.checks import touch
    from suite.file_checks import count_documents, documents
    from suite.packing import cut, pack

    made = some_documents()
    once = pack(made)
    parts = [*cut((pack(made[start::3]) for start in range(3)), 4)]
    assert len(parts) > 3
    assert digest([documents(once)]) == digest(map(documents, parts))
    assert touch(once) == sum(map(touch, parts))
    assert count_documents(once) == sum(map(count_documents, parts)) == 60


def test_a_document_that_is_cut_or_swapped_is_seen(suite):
    from suite.file_checks import documents
    from suite.packing import pack

    right = pack(some_documents())
    wrong = {name: array.copy() for name, array in right.items()}
    wrong["tokens"][0, [5, 6]] = wrong["tokens"][0, [6, 5]]
    assert digest([documents(right)])["whole"] != digest([documents(wrong)])["whole"]


def test_rows_that_are_half_empty_are_refused(suite, tmp_path):
    from suite.file_checks import Seen
    from suite.packing import pack

    seen = Seen(job("jsonl_pack", tmp_path, 60))
    for document in some_documents():
        seen.add(pack([document]))
    with pytest.raises(ValueError, match=r"packed rows are 0\.\d\d full"):
        seen.check()


def test_texts_are_the_same_as_str_and_as_bytes(suite):
    from suite.checks import touch
    from suite.file_workloads import texts

    made = [*texts(1, 20, 5, 50)]
    label = np.arange(20, dtype=np.int32)
    one = {"text": made, "label": label}
    other = {"text": np.array([text.encode() for text in made], object)[::-1], "label": label[::-1]}
    assert digest([one]) == digest([other])
    assert touch(one) == touch(other)
    swapped = {"text": [made[1], made[0], *made[2:]], "label": label}
    assert digest([one])["whole"] != digest([swapped])["whole"]


def test_images_are_known_by_their_number(suite):
    from suite.file_checks import draw_number, with_ranks

    drawn = np.random.default_rng(0).integers(0, 256, (4, 256, 300, 3)).astype(np.uint8)
    numbers = np.array([0, 17, 33, 1023])
    for image, number in zip(drawn, numbers.tolist(), strict=True):
        draw_number(image, number)
    centres = drawn[:, 16:240, 38:262]
    found = with_ranks({"image": centres, "label": numbers % 16}, 1024)
    assert found["label"].tolist() == [0, 65, 66, 1023]
    wrong = with_ranks({"image": centres, "label": [0, 1, 2, 15]}, 1024)
    assert wrong["label"].tolist() == [0, 65, -1, 1023]
    with pytest.raises(ValueError, match="images of float64 and of shape"):
        with_ranks({"image": centres / 255, "label": numbers % 16}, 1024)


def test_every_contender_does_it_or_says_why_not(suite):
    import importlib

    import contenders

    for name in contenders.NAMES:
        contender = importlib.import_module(f"contenders.{name}")
        for workload in ON_FILES if contender.CANNOT else contender.WAYS:
            ways = contender.WAYS.get(workload)
            assert ways or contender.CANNOT.get(workload), (name, workload)
            assert not ways or hasattr(contender, workload) or workload == "resume", name


def test_beside_numpy(tmp_path):
    """Where OpenCV is not installed, images have no data."""
    command = [sys.executable, str(FOLDER / "run.py"), "--quick", "--tiny", "--peers"]
    folders = ["--no-plot", "--data", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [*command, *folders, "--only", *ON_FILES],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "out" / "results.json").read_text())["rows"]
    wrong = {row["reason"] for row in rows if row["status"] != "ok"}
    assert wrong <= {"no data: No module named 'cv2'"}
    measured = {row["workload"] for row in rows if row["status"] == "ok"}
    assert measured >= {"parquet_text", "jsonl_pack"}
