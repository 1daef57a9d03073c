"""The benchmarks still run on small sizes, and the pages quote the results of large ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (
            "core",
            {"mnist128", "mnist1024", "map_record", "trillion_seek", "removed"},
        ),
        pytest.param(
            "processes",
            {"transport_take", "gil_two_workers", "shared_one_batch_slept", "soak_wrong_batches"},
            marks=pytest.mark.benchmarks,
        ),
        pytest.param(
            "streams",
            {"pack", "pack_density", "tokens", "tokens_open", "mix_plan", "mix_phases", "filter"},
            marks=pytest.mark.benchmarks,
        ),
        pytest.param(
            "saving",
            {"save_workers", "save_shards", "save_parts"},
            marks=pytest.mark.benchmarks,
        ),
        pytest.param(
            "auto",
            {"chain_gil_300ms_after_15s", "stream_sleep_40ms_after_5s", "gathers"},
            marks=pytest.mark.benchmarks,
        ),
        pytest.param(
            "corners",
            {"layout_cifar", "concatenate", "records_tuple", "small_epochs"},
            marks=pytest.mark.benchmarks,
        ),
        pytest.param(
            "torch_compat",
            {"tutorial", "arrays", "dicts", "tensors", "workers", "large"},
            marks=pytest.mark.benchmarks,
        ),
        pytest.param("workers", {"jpeg"}, marks=pytest.mark.benchmarks),  # skips without Ray
        pytest.param(
            "devices",
            {"fed_wait_50", "placing_8", "loading_and_placing_1", "mlp_data_wait"},
            marks=pytest.mark.benchmarks,
        ),
    ],
)
def test_it_runs(script, expected, tmp_path):
    out = tmp_path / "rows.json"
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{script}.py"), "--quick", "--json", str(out)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert expected <= {row["name"] for row in rows}
    assert not [row for row in rows if row["verdict"] == "error"]


def test_pages_quote_the_results(suite):
    from suite.report import PAGES, page

    root = FOLDER.parent
    result = json.loads((FOLDER / "results" / "results.json").read_text())
    assert (FOLDER / "results" / "results.md").read_text() == page(result)
    for name, write in PAGES.items():
        text = (root / name).read_text()
        assert write(text, result) == text, f"{name} has other figures than results.json"
