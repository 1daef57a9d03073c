"""Compressed files are whole, or they are refused."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from loaderx import Dataset, FileError

FILES = Path(__file__).parents[2] / "files"
LINES = [json.dumps({"id": number, "text": f"{number**7}"}) for number in range(3000)]
TEXT = "\n".join(LINES).encode() + b"\n"
SKIPPED = b"\x50\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"any"

if sys.version_info >= (3, 14):
    from compression import zstd

    zstd_of = zstd.compress
else:
    zstandard = pytest.importorskip("zstandard")
    # Without the size of its content, as programs write that compress a stream.
    zstd_of = zstandard.ZstdCompressor(write_content_size=False, write_checksum=False).compress


def frames(count: int) -> bytes:
    size = len(TEXT) // count
    cuts = [*range(0, size * count, size), len(TEXT)]
    return b"".join(zstd_of(TEXT[start:stop]) for start, stop in pairwise(cuts))


def ids(path: Path) -> list[int]:
    return [int(record["id"]) for record in Dataset.open(path)]


@pytest.mark.parametrize(
    "packed",
    [frames(1), frames(5), frames(2) + SKIPPED, zstd_of(b"") + frames(1)],
    ids=["one", "several", "skipped last", "an empty one"],
)
def test_all_frames_are_read(tmp_path, packed):
    (tmp_path / "x.jsonl.zst").write_bytes(packed)
    assert ids(tmp_path / "x.jsonl.zst") == list(range(3000))


@pytest.mark.parametrize(("suffix", "packed"), [("gz", gzip.compress(TEXT)), ("zst", frames(1))])
@pytest.mark.parametrize("seed", range(12))
def test_a_file_that_is_cut_off_is_refused(tmp_path, suffix, packed, seed):
    path = tmp_path / f"x.jsonl.{suffix}"
    at = random.Random(seed).randrange(20, len(packed) - 1) if seed else len(packed) - 1
    path.write_bytes(packed[:at])
    with pytest.raises(FileError, match=rf"{path} is damaged or cut off: \S"):
        Dataset.open(path)
    path.write_bytes(packed)
    assert ids(path) == list(range(3000))  # nothing was kept of the one that was cut off


def test_the_message_says_what_is_missing(tmp_path):
    path = tmp_path / "x.jsonl.zst"
    path.write_bytes(frames(1)[:-1])
    with pytest.raises(FileError, match=r"(?i)end"):
        Dataset.open(path)


def test_bytes_behind_the_last_frame_are_refused(tmp_path):
    path = tmp_path / "x.jsonl.zst"
    path.write_bytes(frames(2) + b"more, which is no frame")
    with pytest.raises(FileError, match="is damaged or cut off"):
        Dataset.open(path)


def test_a_shard_of_mds_that_is_cut_off_is_refused(tmp_path):
    folder = tmp_path / "mds"
    shutil.copytree(FILES / "mds" / "zstd", folder)
    shard = next(folder.glob("*.mds.zstd"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(FileError, match=rf"{shard} is damaged or cut off"):
        Dataset.open(folder)


def test_what_was_unpacked_is_unpacked_again_if_it_is_damaged(tmp_path):
    path, cache = tmp_path / "x.jsonl.zst", tmp_path / "cache"
    path.write_bytes(frames(1))
    assert len(Dataset.open(path, cache=cache)) == 3000
    (plain,) = (cache / "files").glob("*/x.jsonl")
    plain.write_bytes(TEXT[: TEXT.index(b"\n", 5000) + 1])
    assert len(Dataset.open(path, cache=cache)) == 3000
