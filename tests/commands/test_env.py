"""``loaderx env``."""

from __future__ import annotations

import json
import platform
import subprocess
import sys

import numpy as np
import pytest

from loaderx import __version__, cli


def test_facts(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("LOADERX_CACHE", str(tmp_path / "none" / "yet"))
    monkeypatch.setenv("LOADERX_SECRET_KEY", "abc")
    monkeypatch.setenv("LOADERX_PROXY", "https://user:word@host/x?token=abc")
    assert cli.main(["env", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["loaderx"] == __version__
    assert told["python"].startswith(platform.python_version())
    assert told["numpy"] == np.__version__
    assert told["devices"] == "not asked for (--devices starts JAX)"
    assert any(one.startswith("images: pillow ") for one in told["extras"])
    assert told["cache"].startswith(f"{tmp_path / 'none' / 'yet'}: 0 bytes used, ")
    assert "LOADERX_SECRET_KEY=(set)" in told["variables"]
    assert "LOADERX_PROXY=https://host/x?..." in told["variables"]
    assert not (tmp_path / "none").exists()


def test_text(capsys):
    assert cli.main(["env"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"loaderx        {__version__}"
    assert any(line.startswith("shared memory  ") for line in lines)


def test_jax_is_not_started(tmp_path):
    code = (
        "import sys; from loaderx import cli; cli.main(['env']); "
        "sys.exit(any(name.partition('.')[0] == 'jax' for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0


@pytest.mark.foreign
def test_devices(capsys):
    pytest.importorskip("jax")
    assert cli.main(["env", "--devices", "--json"]) == 0
    devices = json.loads(capsys.readouterr().out)["devices"]
    assert all(" x cpu: " in one or " x " in one for one in devices)
    assert devices
