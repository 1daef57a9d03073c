"""``loaderx view``."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from loaderx import cli
from processes import environment, free_port

SCRIPT = """
from loaderx import DataLoader, Dataset

def chain():
    return Dataset.range(100).shuffle(seed=0).batch(4)

def loader():
    return DataLoader(chain(), shard=(1, 2))

def number():
    return 5
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "script_to_view.py").write_text(SCRIPT)
    (tmp_path / "x.csv").write_text("a,b\n" + "".join(f"{n},{n * n}\n" for n in range(50)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    yield tmp_path
    sys.modules.pop("script_to_view", None)


class Viewer:
    """A viewer in a process of its own."""

    def __init__(self, folder, *arguments):
        command = [sys.executable, "-m", "loaderx", "view", *map(str, arguments)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdout=pipe, stderr=pipe, text=True, cwd=folder, env=environment()
        )
        self.line = self.process.stdout.readline()
        self.url = (re.findall(r"http://\S+/", self.line) or [""])[0]

    def page(self, place=""):
        with urllib.request.urlopen(self.url + place, timeout=60) as answer:
            return answer.read().decode()

    def end(self, number=signal.SIGINT):
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("script_to_view:chain", "shuffle(seed=0)"),
        ("script_to_view:loader", "batch(4)"),
        ("x.csv", "49"),
    ],
)
def test_it_serves_until_it_is_interrupted(folder, what, told):
    with Viewer(folder, what, "--no-browser", "--step", "3") as viewer:
        assert viewer.line == f"{what}: {viewer.url} (Ctrl-C ends)\n"
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", viewer.url)
        assert 'value="3"' in viewer.page()
        assert told in viewer.page() + viewer.page("columns")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(viewer.url[:-2] + "/", timeout=60)
        assert viewer.end() == (0, "\n", "")


def test_it_can_be_interrupted_at_any_time(folder):
    with Viewer(folder, "x.csv", "--no-browser") as viewer:
        assert viewer.end() == (0, "\n", "")


def test_the_port_can_be_given(folder):
    port = free_port()
    with Viewer(folder, "x.csv", "--no-browser", "--port", port) as viewer:
        assert f"http://127.0.0.1:{port}/" in viewer.line
        with Viewer(folder, "x.csv", "--no-browser", "--port", port) as second:
            out, err = second.process.communicate(timeout=60)
            assert (second.process.returncode, second.line + out) == (2, "")
            assert err.startswith(f"loaderx view: port {port} cannot be used: ")
            assert err.count("\n") == 1


def refused(capsys, *arguments):
    assert cli.main(["view", *arguments]) == cli.UNUSABLE
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_what_cannot_be_shown(folder, capsys):
    told = refused(capsys, "nothing.csv")
    assert told.startswith("loaderx view: ")
    assert "nothing.csv" in told
    assert "has no function 'other'" in refused(capsys, "script_to_view:other")
    assert "there is no module 'script_of_nobody'" in refused(capsys, "script_of_nobody:chain")
    assert "must be MODULE:FUNCTION" in refused(capsys, "script_to_view.py:chain")
    assert "it returned int" in refused(capsys, "script_to_view:number")
    assert refused(capsys, "script_to_view:chain", "--split", "train") == (
        "loaderx view: --split is for files, and script_to_view:chain is a function.\n"
    )
    told = refused(capsys, "x.csv", "--port", "70000")
    assert "port 70000 cannot be used" in told
    assert ".." not in told


def test_a_browser_is_opened_where_there_is_a_screen(folder, monkeypatch, capsys):
    opened, is_open = [], threading.Event()

    def open_file(url):
        path = Path(urllib.request.url2pathname(urllib.parse.urlsplit(url).path))
        opened.append((path, path.read_text(), path.parent.stat().st_mode & 0o777))
        is_open.set()

    monkeypatch.setattr("webbrowser.open", open_file)
    serve = "loaderx.viewer.server.ViewServer.serve_forever"
    monkeypatch.setattr(serve, lambda server: None)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    assert cli.main(["view", "x.csv"]) == cli.OK
    monkeypatch.setenv("DISPLAY", ":0")
    assert cli.main(["view", "x.csv", "--no-browser"]) == cli.OK
    assert opened == []
    monkeypatch.setattr(serve, lambda server: is_open.wait())
    assert cli.main(["view", "x.csv"]) == cli.OK
    ((path, text, mode),) = opened
    url = re.findall(r"http://\S+/", capsys.readouterr().out)[-1]
    assert f'url={url}"' in text
    assert mode == 0o700  # other users cannot read the token
    assert not path.exists()


@pytest.mark.parametrize("option", ["--step", "--port"])
def test_bad_numbers(option, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["view", "x.csv", option, "-1"])
    assert stopped.value.code == 2
    assert "must be a number of at least 0, got '-1'" in capsys.readouterr().err
