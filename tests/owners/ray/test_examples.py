"""The examples with Ray run, as a reader would run them, on a small cluster of their own."""

from __future__ import annotations

import pytest

from tests.test_examples import run

pytestmark = [pytest.mark.owners, pytest.mark.foreign]


@pytest.fixture(autouse=True)
def _own_cluster(monkeypatch):
    """A program that starts Ray finds no cluster that runs on this machine already."""
    monkeypatch.setenv("RAY_ADDRESS", "local")


def test_preprocessing(tmp_path):
    pytest.importorskip("PIL", reason="Pillow is not installed")
    arguments = ["--images", "60", "--folder", str(tmp_path / "run")]
    text = run("ray_preprocessing.py", *arguments, folder=tmp_path)
    assert "60 images prepared by 2 workers of Ray" in text
    assert "step 0: loss" in text


def test_train_goes_on_with_another_number_of_workers(tmp_path):
    pytest.importorskip("pydantic", reason="ray.train needs pip install 'ray[train]'")
    arguments = ["--workers", "2", "1", "--steps", "4", "--folder", str(tmp_path)]
    text = run("ray_train.py", *arguments, folder=tmp_path, timeout_s=240)
    assert "1 workers: batches 4 to 7" in text, text
    assert "the same rows as one loader, in the same order: yes" in text, text
