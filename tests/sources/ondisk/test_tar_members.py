"""The walk through a tar file, against Python's own `tarfile`."""

from __future__ import annotations

import io
import tarfile
import tempfile

import pytest

from loaderx import FileError
from loaderx.sources.formats.tar.members import TarWalk, number

LONG = "folder-" + "x" * 120 + "/" + "name-" + "y" * 130 + ".jpg"  # too long for a plain header
PREFIXED = "a" * 90 + "/" + "b" * 80 + ".jpg"  # fits into name and prefix
NAMES = ["a.jpg", "b/c.cls", "ü/ß.txt", LONG, PREFIXED, "empty.txt"]


def content(name):
    return b"" if name.startswith("empty") else name.encode() * 7


def tar(names=NAMES, format=tarfile.USTAR_FORMAT, pax_headers=None, change=None):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format, pax_headers=pax_headers) as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(content(name))
            if change:
                change(info)
            archive.addfile(info, io.BytesIO(content(name)))
    return out.getvalue()


def walked(data):
    with tempfile.TemporaryFile() as file:
        file.write(data)
        walk = TarWalk(file, "x.tar")
        members = [(one.name, data[one.start : one.start + one.size]) for one in walk]
    return members, walk.has_end


def by_tarfile(data):
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return [(info.name, archive.extractfile(info).read()) for info in archive if info.isreg()]


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (tar([name for name in NAMES if name != LONG]), 5),
        (tar(format=tarfile.GNU_FORMAT), 6),
        (tar(format=tarfile.PAX_FORMAT), 6),
        (tar(format=tarfile.PAX_FORMAT, pax_headers={"comment": "for all", "mtime": "1.5"}), 6),
        (tar([]), 0),
    ],
    ids=["ustar", "gnu", "pax", "pax global", "empty"],
)
def test_formats(data, count):
    members, has_end = walked(data)
    assert has_end
    assert len(members) == count
    assert members == by_tarfile(data)


def test_pax_sizes_and_sub_second_times():
    def change(info):
        info.pax_headers = {"size": str(info.size), "mtime": "3.25"}

    data = tar(format=tarfile.PAX_FORMAT, change=change)
    assert walked(data)[0] == by_tarfile(data)


@pytest.mark.parametrize("first", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_two_headers_about_one_member(first):
    second = ({tarfile.PAX_FORMAT, tarfile.GNU_FORMAT} - {first}).pop()
    headers = [
        tarfile.TarInfo(f"{number}/{'x' * 200}.txt").tobuf(format)[: -tarfile.BLOCKSIZE]
        for number, format in enumerate((first, second))
    ]
    data = b"".join(headers) + tar(["a.txt"])
    members, _ = walked(data)
    assert members == by_tarfile(data) == [(f"0/{'x' * 200}.txt", content("a.txt"))]


def test_only_regular_files_are_members():
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, kind in (
            ("folder", tarfile.DIRTYPE),
            ("link.jpg", tarfile.SYMTYPE),
            ("hard.jpg", tarfile.LNKTYPE),
            ("pipe.jpg", tarfile.FIFOTYPE),
            ("old/", tarfile.AREGTYPE),
            ("file.jpg", tarfile.CONTTYPE),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "elsewhere.jpg"
            archive.addfile(info)
    assert [name for name, _ in walked(out.getvalue())[0]] == ["file.jpg"]


def test_numbers_in_base_256():
    assert number(b"\x80" + (2**40).to_bytes(11, "big")) == 2**40
    assert number(b"       \0") == 0
    assert number(b"9\0") is None
    plain = tar(["a.jpg"], tarfile.GNU_FORMAT)
    field = b"\x80" + len(content("a.jpg")).to_bytes(11, "big")
    data = with_checksum(plain[:124] + field + plain[136:])
    assert walked(data)[0] == [("a.jpg", content("a.jpg"))]


def with_checksum(data, *, signed=False):
    header = data[:148] + b" " * 8 + data[156:512]
    total = sum(byte - 256 if signed and byte > 127 else byte for byte in header)
    return header[:148] + b"%06o\0 " % total + header[156:] + data[512:]


def test_checksums_of_signed_bytes():
    data = with_checksum(tar(["ü.jpg"]), signed=True)
    assert walked(data)[0] == [("ü.jpg", content("ü.jpg"))]


def test_archives_one_after_the_other():
    """`cat a.tar b.tar`: there is an end in the middle."""
    with tempfile.TemporaryFile() as file:
        file.write(tar(["a.jpg"]) + tar(["b.jpg"]))
        walk = TarWalk(file, "x.tar")
        assert [(one.name, one.archive) for one in walk] == [("a.jpg", 0), ("b.jpg", 1)]
        assert walk.has_end


def test_without_an_end():
    data = tar(["a.jpg"])[:1024]
    members, has_end = walked(data)
    assert [name for name, _ in members] == ["a.jpg"]
    assert not has_end


ONE = tar(["a.jpg"])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (ONE[:530], r"x\.tar is cut off: 'a\.jpg' ends at byte 1024, and the file has 530"),
        (ONE[:1023], r"x\.tar is cut off: 'a\.jpg' ends at byte 1024, and the file has 1023"),
        (ONE[:300], r"x\.tar is cut off, or it is not a tar file: it ends within"),
        (b"no tar at all" * 100, r"x\.tar is damaged, or not a tar file: a header does not agree"),
        (ONE + b"garbage" * 200, "does not agree with its checksum"),
        (ONE + b"garbage", "bytes that are no archive follow its end"),
        (ONE.replace(b"a.jpg", b"b.jpg", 1), "does not agree with its checksum"),
        (with_checksum(ONE[:124] + b"zzzzzzzzzzz\0" + ONE[136:]), "a member has the size"),
        (with_checksum(ONE[:156] + b"S" + ONE[157:]), "stored as a sparse file"),
        (tar(["a.jpg"], change=lambda info: info.pax_headers.update({"GNU.sparse.major": "1"}),
             format=tarfile.PAX_FORMAT), "stored as a sparse file"),
        (tar(["a.jpg"], tarfile.PAX_FORMAT, {"size": "many"}), "a pax header has the size 'many'"),
        (tar(["a.jpg"], tarfile.PAX_FORMAT, {"path": "b"}).replace(b"9 path=b\n", b"7 path=b\n"),
         "a pax header cannot be read"),
        (with_checksum(ONE[:124] + b"77777777777\0" + ONE[136:156] + b"x" + ONE[157:]),
         "a header has 8589934591 bytes, which none needs"),
    ],
)  # fmt: skip
def test_damage(data, message):
    with pytest.raises(FileError, match=message):
        walked(data)


def test_zeroed_headers_are_no_end():
    data = tar(["a.jpg", "b.jpg"])
    with pytest.raises(FileError, match="does not agree with its checksum"):
        walked(bytes(512) + data[512:])
