"""The pictures of the documentation are drawn by a script, from what loaderx says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from browser import missing

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"


def words(path):
    return [text.text for text in ET.parse(path).iter("{http://www.w3.org/2000/svg}text")]


def test_all_pictures_can_be_drawn_again(tmp_path):
    pytest.importorskip("PIL", reason="a picture is drawn with Pillow")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(PICTURES / "draw.py"), str(tmp_path)]
    subprocess.run(command, check=True, env=environment, timeout=300)
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn == {p.name for p in PICTURES.iterdir() if p.suffix in (".svg", ".png")}
    for name in ("batch.svg", "hosts.svg", "packing.svg"):  # times differ in stats.svg
        assert (tmp_path / name).read_text() == (PICTURES / name).read_text(), name
    assert any(word.startswith("waited for data:") for word in words(tmp_path / "stats.svg"))


def test_the_hosts_share_one_batch():
    numbers = [word for word in words(PICTURES / "hosts.svg") if re.fullmatch(r"\d+", word)]
    assert len(numbers) == 24
    assert numbers[:8] == numbers[8:16] == numbers[16:]


def test_every_picture_is_shown_somewhere():
    pages = "".join(path.read_text() for path in [*ROOT.glob("docs/*.md"), ROOT / "README.md"])
    for path in PICTURES.rglob("*.*"):
        if path.suffix in (".svg", ".png"):
            assert f"pictures/{path.relative_to(PICTURES).as_posix()})" in pages, path.name


@pytest.mark.skipif(missing() is not None, reason=f"needs a browser: {missing()}")
def test_all_screenshots_can_be_taken_again(tmp_path):
    pytest.importorskip("PIL", reason="a picture is made small with Pillow")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(PICTURES / "screenshots.py"), str(tmp_path)]
    subprocess.run(command, check=True, env=environment, timeout=300)
    kept = {path.name for path in (PICTURES / "viewer").iterdir()}
    assert {path.name for path in tmp_path.iterdir()} == kept
    assert all(path.stat().st_size < 120_000 for path in (PICTURES / "viewer").iterdir())
