"""The cache folder: made once, found again, made again when stale or damaged, never in the way."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from file_families import WRITERS, table
from loaderx import Dataset, LoaderxWarning
from loaderx.errors import ArgumentTypeError, FileError
from loaderx.sources.cache.entries import cache_entries
from loaderx.sources.cache.folder import CacheFolder, CopyOf, IndexedFile, cache_folder
from loaderx.sources.cache.owners import is_dead, own_mark
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.progress import Progress


def replaced(path: Path, content: bytes) -> None:
    """Another file takes the place, with the same time, as rsync -t, tar -x and nix have it."""
    before, new = path.stat(), path.with_name("new")
    new.write_bytes(content)
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    new.rename(path)


def rewritten(path: Path, content: bytes) -> None:
    """The same file has another content, and gets its time back, as cp -p leaves it."""
    before = path.stat()
    while path.stat().st_ctime_ns == before.st_ctime_ns:  # the clock of files may be coarse
        path.write_bytes(content)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.fixture
def paths(tmp_path):
    made = []
    for number, text in enumerate((b"a\nbb\n", b"", b"ccc\n")):
        made.append(str(tmp_path / f"{number}.txt"))
        (tmp_path / f"{number}.txt").write_bytes(text)
    return made


class Lines:
    """Indexes the ends of lines, and counts how often it is asked."""

    def __init__(self, files):
        self.files, self.asked = files, 0

    def __call__(self, number):
        self.asked += 1
        ends = np.flatnonzero(self.files.data(number) == 10)
        return IndexedFile({"ends": ends, "twice": ends * 2}, {"lines": len(ends)})


def check(index):
    assert index.arrays["ends"].tolist() == [1, 4, 3]
    assert index.arrays["twice"].tolist() == [2, 8, 6]
    assert index.parts["ends"].counts.tolist() == [2, 0, 1]
    assert [note["lines"] for note in index.notes] == [2, 0, 1]


def made(folder, paths, kind="lines", version=1):
    files = FileSet(paths)
    indexer = Lines(files)
    check(CacheFolder(folder).index(kind, version, files, indexer))
    return indexer.asked


def test_an_index_is_made_once(tmp_path, paths):
    folder = str(tmp_path / "cache")
    assert [made(folder, paths) for _ in range(3)] == [3, 0, 0]
    assert made(folder, paths, kind="others") == 3
    assert made(folder, paths, version=2) == 3
    assert made(None, paths) == made(None, paths) == 3


def test_a_changed_file_is_indexed_again(tmp_path, paths):
    folder = str(tmp_path / "cache")
    assert made(folder, paths) == 3
    os.utime(paths[0], ns=(1, 1))
    assert made(folder, paths) == 3
    assert made(folder, paths) == 0


def write_gzip(path, numbers):
    WRITERS["jsonl"](path, numbers)
    plain = path.with_suffix(".jsonl")
    path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(plain.read_bytes(), 0))
    plain.unlink()


def write_parquet(path, numbers):
    pq.write_table(table(numbers), path.with_suffix(".parquet"), compression="none")


@pytest.mark.parametrize("change", [replaced, rewritten])
@pytest.mark.parametrize(
    "family", ["arrow", "csv", "gzip", "jsonl", "parquet", "tar", "text", "tfrecord"]
)
def test_a_file_of_the_same_size_and_time_is_read_anew(tmp_path, family, change):
    first, second = [1, 22, 333, 4444], [4444, 1, 22, 333]
    write = {"gzip": write_gzip, "parquet": write_parquet}.get(family) or WRITERS[family]
    found = []
    for name, numbers in (("a", first), ("b", second)):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "x", numbers)
        (path,) = (tmp_path / name).iterdir()
        found.append(path)
        os.utime(path, ns=(10**18, 10**18))
    path, other = found
    expected = [str(record) for record in Dataset.open(other)]
    assert path.stat().st_size == other.stat().st_size
    assert [str(record) for record in Dataset.open(path)] != expected
    change(path, other.read_bytes())
    assert [str(record) for record in Dataset.open(path)] == expected


def entry(folder):
    (one,) = os.listdir(os.path.join(folder, "index"))
    return os.path.join(folder, "index", one)


def damage_nothing(place):
    return 0


def remove_array(place):
    os.remove(os.path.join(place, "ends.npy"))
    return 3


def cut_array(place):
    with open(os.path.join(place, "ends.npy"), "r+b") as file:
        file.truncate(140)
    return 3


def flip_array(place):
    with open(os.path.join(place, "ends.npy"), "r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"\x07")
    return 3


def cut_description(place):
    with open(os.path.join(place, "index.json"), "r+b") as file:
        file.truncate(20)
    return 3


def lie_in_description(place):
    path = os.path.join(place, "index.json")
    with open(path) as file:
        told = json.load(file)
    told["counts"]["ends"] = [3, 0, 1]
    with open(path, "w") as file:
        json.dump(told, file)
    return 3


@pytest.mark.parametrize(
    "damage",
    [damage_nothing, remove_array, cut_array, flip_array, cut_description, lie_in_description],
)
def test_a_damaged_index_is_made_again(tmp_path, paths, damage):
    folder = str(tmp_path / "cache")
    assert made(folder, paths) == 3
    expected = damage(entry(folder))
    assert made(folder, paths) == expected
    assert made(folder, paths) == 0


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_damaged_in_a_description_it_is_made_again(tmp_path, paths, seed):
    folder = str(tmp_path / "cache")
    assert made(folder, paths) == 3
    path, draw = Path(entry(folder), "index.json"), random.Random(seed)
    content = bytearray(path.read_bytes())
    match seed % 4:
        case 0:
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        case 1:
            digits = [at for at, byte in enumerate(content) if chr(byte).isdigit()]
            at = draw.choice(digits)
            content[at] = (content[at] - 48 + 1) % 10 + 48  # it is JSON as before
        case 2:
            content[draw.randrange(len(content)) :] = draw.choice(
                [b"", b"[" * 100_000, b"9" * 5000]
            )
        case 3:
            told = json.loads(content)
            told[draw.choice(list(told))] = draw.choice([None, [], {}, 3, "x", [[1]] * 3])
            content = bytearray(json.dumps(told).encode())
    path.write_bytes(content)
    assert made(folder, paths) == 3
    assert made(folder, paths) == 0


@pytest.mark.parametrize("damage", ["description", "cut", "removed", "own description"])
@pytest.mark.parametrize("family", ["parquet"])
def test_a_damaged_copy_is_made_again(tmp_path, family, damage):
    WRITERS[family](tmp_path / "x", [1, 2, 3])
    (path,) = tmp_path.glob("x*")
    cache = tmp_path / "cache"
    expected = [str(record) for record in Dataset.open(path, cache=cache)]
    (copy,) = (cache / "files").iterdir()
    files = sorted(copy.rglob("*.npy"))
    if damage == "cut":
        os.truncate(files[-1], files[-1].stat().st_size - 1)
    elif damage == "removed":
        files[0].unlink()
    else:
        one = copy / ("index.json" if damage == "description" else "loaderx.json")
        one.write_text(one.read_text().replace("int64", "int32").replace("3", "4"))
    for _ in range(2):
        assert [str(record) for record in Dataset.open(path, cache=cache)] == expected


def test_an_indexer_that_fails_leaves_nothing(tmp_path, paths):
    folder = tmp_path / "cache"

    def fails(number):
        raise FileError("no good")

    with pytest.raises(FileError, match="no good"):
        CacheFolder(str(folder)).index("lines", 1, FileSet(paths), fails)
    assert list((folder / "index").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_said_once(tmp_path, paths):
    (tmp_path / "file").write_text("")
    folder = str(tmp_path / "file" / "cache")
    with pytest.warns(LoaderxWarning, match="cannot be written to .* kept in memory"):
        assert made(folder, paths) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert made(folder, paths) == 3
    with pytest.raises(FileError, match="the cache folder .* cannot be written to"):
        CacheFolder(folder).copy(CopyOf("converted", 1, paths, lambda place: None))


BUILD = """
import sys
from loaderx.sources.cache.folder import CacheFolder, IndexedFile
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.cache.owners import is_dead, own_mark
from loaderx.sources.progress import Progress
import numpy as np
files = FileSet(sys.argv[2:])
print("ready", flush=True)
sys.stdin.readline()
index = CacheFolder(sys.argv[1]).index("lines", 1, files, lambda n: IndexedFile(
    {"ends": np.flatnonzero(files.data(n) == 10)}))
print(index.arrays["ends"].tolist(), flush=True)
"""


def test_processes_may_make_an_index_at_once(tmp_path, paths):
    command = [sys.executable, "-c", BUILD, str(tmp_path / "cache"), *paths]
    running = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for one in running:
        assert one.stdout.readline() == "ready\n"
    for one in running:
        one.stdin.write("go\n")
        one.stdin.flush()
    for one in running:
        answer, _ = one.communicate()
        assert answer == "[1, 4, 3]\n"
    assert len(os.listdir(tmp_path / "cache" / "index")) == 1


def test_an_index_that_was_made_meanwhile_stays(tmp_path, paths):
    """The process that made it may be opening its files."""
    files, folder = FileSet(paths), tmp_path / "cache"
    first = []

    def indexed(number):
        return IndexedFile({"ends": np.flatnonzero(files.data(number) == 10)})

    def overtaken(number):
        if not first:
            CacheFolder(str(folder)).index("lines", 1, files, indexed)
            first.extend(one.stat().st_ino for one in (folder / "index").iterdir() if is_made(one))
        return indexed(number)

    found = CacheFolder(str(folder)).index("lines", 1, files, overtaken)
    assert found.arrays["ends"].tolist() == [1, 4, 3]
    assert [one.stat().st_ino for one in (folder / "index").iterdir()] == first


def is_made(entry):
    return not entry.name.endswith(".tmp")


def test_copies(tmp_path, paths):
    cache = CacheFolder(str(tmp_path / "cache"))
    calls = []

    def make(folder):
        calls.append(folder)
        with open(os.path.join(folder, "x"), "w") as file:
            file.write("made")

    places = {cache.copy(CopyOf("converted", 1, paths, make, {"columns": ["a"]})) for _ in range(2)}
    assert len(calls) == len(places) == 1
    assert cache.copy(CopyOf("converted", 1, paths, make, {"columns": ["b"]})) not in places
    with pytest.raises(FileError, match="must be converted first, and there is no cache folder"):
        CacheFolder(None).copy(CopyOf("converted", 1, paths, make))


def test_the_argument(tmp_path, monkeypatch):
    monkeypatch.setenv("LOADERX_CACHE", str(tmp_path / "a"))
    assert cache_folder(None).folder == str(tmp_path / "a")
    assert cache_folder(tmp_path / "b").folder == str(tmp_path / "b")
    assert cache_folder(False).folder is None
    monkeypatch.delenv("LOADERX_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder(None).folder == str(tmp_path / ".cache" / "loaderx")
    with pytest.raises(ArgumentTypeError, match="`cache` must be a folder or False, got 3"):
        cache_folder(3)


@pytest.mark.parametrize("family", ["jsonl", "parquet", "packed"])
def test_ctrl_c_leaves_no_part_of_an_entry(tmp_path, monkeypatch, family):
    """While files are indexed, copied or unpacked."""
    folder, cache = tmp_path / "data", tmp_path / "cache"
    folder.mkdir()
    WRITERS["jsonl" if family == "packed" else family](folder / "a", range(9))
    if family == "packed":
        path = folder / "a.jsonl"
        (folder / "a.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "add", lambda self, count: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            Dataset.open(folder, cache=cache)
    assert list(cache.glob("*/*")) == []
    assert [int(record["x"]) for record in Dataset.open(folder, cache=cache)] == list(range(9))


def test_the_folder_is_private(tmp_path, paths):
    made(str(tmp_path / "a" / "cache"), paths)
    assert (tmp_path / "a" / "cache").stat().st_mode & 0o777 == 0o700
    (tmp_path / "shared").mkdir(mode=0o755)
    made(str(tmp_path / "shared"), paths)
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o755


def test_links_are_not_followed(tmp_path, paths):
    folder = str(tmp_path / "cache")
    made(folder, paths)
    copy = CacheFolder(folder).copy(CopyOf("copied", 1, paths, lambda place: None))
    for number, place in enumerate([*(tmp_path / "cache" / "index").iterdir(), Path(copy)]):
        place.rename(tmp_path / f"elsewhere {number}")
        place.symlink_to(tmp_path / f"elsewhere {number}")
    with pytest.warns(LoaderxWarning, match="is a link, or belongs to another user"):
        assert made(folder, paths) == 3
    with pytest.raises(FileError, match="is a link, or belongs to another user"):
        CacheFolder(folder).copy(CopyOf("copied", 1, paths, lambda place: None))
    assert cache_entries(folder) == []


# What dead processes leave ----------------------------------------------------------------------

KILLED = """
import os, signal, sys
from loaderx.sources.cache.folder import making
with making(sys.argv[1], os.path.isdir) as temporary:
    open(os.path.join(temporary, "half"), "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def fresh(monkeypatch):
    """As in a process that has not looked for what others left."""
    monkeypatch.setattr("loaderx.sources.cache.folder.looked_at", set())


def test_what_a_killed_process_leaves_is_removed(tmp_path, paths, fresh):
    place = tmp_path / "cache" / "index" / "0123"
    subprocess.run([sys.executable, "-c", KILLED, str(place)], check=False)
    (left,) = (tmp_path / "cache" / "index").iterdir()
    assert (left / "half").exists()
    made(str(tmp_path / "cache"), paths)
    assert not left.exists()


@pytest.mark.parametrize("of", ["an older loaderx", "another machine", "a process that lives"])
def test_what_may_still_be_made_is_left_for_a_day(tmp_path, paths, fresh, monkeypatch, of):
    others = {"an older loaderx": "77", "another machine": f"{os.getpid()}-0123abcd"}
    mark = others.get(of) or own_mark()
    left = tmp_path / "cache" / "index" / f"0123.{mark}-abcd.tmp"
    left.mkdir(parents=True)
    (left / "half").touch()
    made(str(tmp_path / "cache"), paths)
    assert left.exists()
    day_ago = time.time() - 86_401
    os.utime(left / "half", (day_ago, day_ago))
    os.utime(left, (day_ago, day_ago))
    monkeypatch.setattr("loaderx.sources.cache.folder.looked_at", set())
    made(str(tmp_path / "cache"), paths, kind="others")
    assert not left.exists()


def test_which_processes_are_known_to_have_ended():
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    machine = own_mark().partition("-")[2]
    assert is_dead(f"{done.pid}-{machine}")
    assert not is_dead(own_mark())
    assert not is_dead(f"{done.pid}-00000000")
    assert not is_dead("")
    assert not is_dead(f"1-{machine}")


def test_sections_of_other_users_are_not_used(tmp_path, paths, monkeypatch):
    folder = str(tmp_path / "cache")
    made(folder, paths)
    index = (tmp_path / "cache" / "index").stat()

    def is_own(status):
        return status.st_ino != index.st_ino

    monkeypatch.setattr("loaderx.sources.cache.folder.is_own", is_own)
    with pytest.warns(LoaderxWarning, match="or its folder, is a link, or belongs to another user"):
        assert made(folder, paths) == 3


def test_a_section_may_be_a_link_of_the_user(tmp_path, paths):
    (tmp_path / "cache").mkdir()
    (tmp_path / "scratch").mkdir()
    (tmp_path / "cache" / "index").symlink_to(tmp_path / "scratch")
    made(str(tmp_path / "cache"), paths)
    assert len(list((tmp_path / "scratch").iterdir())) == 1
