"""The examples run, on small data, as a reader would run them."""

from __future__ import annotations

import gzip
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from processes import environment, kill_group, run_group
from workers import children_of

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name, *arguments, folder, timeout_s=180):
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    (text,) = run_group([command], timeout_s=timeout_s, env=environment(), cwd=folder)
    return text


def percents(text, label):
    return [float(value) for value in re.findall(rf"{label} ([\d.]+)%", text)]


def idx(array):
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return head + array.tobytes()


@pytest.fixture
def idx_folder(tmp_path):
    """Images in MNIST's format, packed as they come: a bright square whose place is the class."""
    rng = np.random.default_rng(0)
    for part, count in {"train": 640, "t10k": 100}.items():
        labels = rng.integers(0, 10, count).astype(np.uint8)
        images = rng.integers(0, 40, (count, 28, 28)).astype(np.uint8)
        for image, label in zip(images, labels):
            image[2 * label : 2 * label + 8, 4:24] = 250
        for name, array in {"images-idx3": images, "labels-idx1": labels}.items():
            file = tmp_path / f"{part}-{name}-ubyte.gz"
            file.write_bytes(gzip.compress(idx(array)))
    return tmp_path


def test_mlp_on_idx_files(idx_folder):
    text = run("mlp.py", "--data", str(idx_folder), "--epochs", "6", folder=idx_folder)
    scores = percents(text, "test accuracy")
    assert len(scores) == 6
    assert scores[-1] > 60, text
    assert "of it in the loader" in text


def test_mlp_on_digits(tmp_path):
    text = run("mlp.py", "--epochs", "3", folder=tmp_path)
    assert len(percents(text, "test accuracy")) == 3


def test_mlp_says_what_is_missing(tmp_path):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "mlp.py"), "--data", str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=False, env=environment(),
    )  # fmt: skip
    assert done.returncode == 1
    assert "train-images-idx3-ubyte, nor train-images-idx3-ubyte.gz beside it" in done.stderr


def test_nnx_cnn(tmp_path):
    text = run("nnx_cnn.py", "--epochs", "2", folder=tmp_path)
    assert re.search(r"epoch 2, step \d+ of \d+: loss \d", text), text
    assert percents(text, "validation accuracy")[-1] > 50, text


def test_cifar_augment(tmp_path):
    arguments = ["--on", "both", "--epochs", "2", "--images", "128"]
    text = run("cifar_augment.py", *arguments, folder=tmp_path)
    on_host, on_device = (
        re.findall(rf"augmented on {side}, (epoch .*)", text) for side in ("host", "device")
    )
    assert len(on_host) == len(on_device) == 2, text
    (loss,) = re.findall(r"differ by at most (\S+) in loss", text)
    assert float(loss) < 1e-3, text


def test_multi_host(tmp_path):
    arguments = ["--processes", "2", "1", "--steps", "6", "--folder", str(tmp_path / "run")]
    text = run("multi_host.py", *arguments, folder=tmp_path, timeout_s=240)
    assert text.count("same batches as one process: yes") == 2, text
    assert "2 processes: batches 0 to 5" in text
    assert "1 process: batches 6 to 11" in text
    assert "each process loaded 192 records" in text


@pytest.mark.parametrize("wait_for", [1, 2])
def test_ctrl_c_ends_all_processes_of_multi_host(wait_for, tmp_path):
    """No child outlives the process that started it, also when it was just being started."""
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLES / "multi_host.py"), "--processes", "2", "--steps", "100000",
         "--folder", str(tmp_path)],
        env=environment(), cwd=tmp_path, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until = time.monotonic() + 60
        while len(children_of(process.pid)) < wait_for:
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(60) != 0
        assert not with_argument(str(tmp_path))
    finally:
        for pid in with_argument(str(tmp_path)):
            os.kill(pid, signal.SIGKILL)
        kill_group(process)


RESUMED = """
import sys
sys.path.insert(0, {folder!r})
from pathlib import Path
import language_model as example

example.LAYERS = 1  # half as much to compile

whole = example.train(9, Path("whole"), quiet=True)
first = example.train(4, Path("parts"), quiet=True)
rest = example.train(9, Path("parts"), quiet=True)
assert first + rest == whole, (first, rest, whole)
assert whole[-1] < whole[0]
assert example.train(9, Path("parts")) == []
print("same losses")
"""

KEEP_COMPILED = {  # the three trainings compile the same
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


def test_the_language_model_trains_stops_and_goes_on(tmp_path):
    pytest.importorskip("flax", reason="flax is not installed")
    done = subprocess.run(
        [sys.executable, "-c", RESUMED.format(folder=str(EXAMPLES))],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=tmp_path,
        env=environment(JAX_COMPILATION_CACHE_DIR=str(tmp_path / "compiled"), **KEEP_COMPILED),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "same losses\n"


def with_argument(argument):
    """The processes that were started with this argument, and are not ended."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if argument.encode() in line.read_bytes().split(b"\0"):
                found.append(int(line.parent.name))
        except OSError:
            continue
    return found
