"""The demo and the command line."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest

from loaderx import Dataset, __version__, cli
from loaderx.demo.train import DIGITS
from processes import environment


@pytest.mark.foreign
def test_a_stopped_training_goes_on_as_if_nothing_had_happened():
    done = subprocess.run(
        [sys.executable, "-m", "loaderx", "demo"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=environment(),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "same batches      yes" in done.stdout
    assert "same weights      yes" in done.stdout
    told = r"test accuracy +([\d.]+)%.*waited for data +([\d.]+) s of ([\d.]+) s"
    accuracy, waited_s, seconds = map(float, re.search(told, done.stdout, re.S).groups())
    assert accuracy > 90
    assert 0 <= waited_s < seconds


def test_the_digits_are_real():
    dataset = Dataset.open(DIGITS)
    assert len(dataset) == 1797
    assert repr(dataset.element_spec) == "{'image': uint8[8,8], 'label': int32[]}"
    assert np.bincount([int(r["label"]) for r in dataset]).min() > 170


def test_version(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"loaderx {__version__}\n"


def test_help(capsys):
    assert cli.main([]) == 0
    assert "demo" in capsys.readouterr().out


def test_a_missing_package_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "optax", None)
    monkeypatch.delitem(sys.modules, "loaderx.demo.train", raising=False)
    assert cli.main(["demo"]) == 2
    assert "pip install jax flax optax tqdm" in capsys.readouterr().err
