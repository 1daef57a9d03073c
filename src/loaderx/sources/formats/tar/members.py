"""The members of a tar file: a walk from header to header that checks every checksum.

All forms in use are read: POSIX ustar with its prefix, pax headers (global and local), GNU's
long names, numbers in base 256.  Only regular files are members; folders and links are skipped.

An archive ends with a block of zeros.  Behind it, another archive may follow (``cat a.tar b.tar``),
which is read as well; other bytes are an error, because the zeros were damage and not the end.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from loaderx.errors import FileError
from loaderx.sources.formats.heads import TAR_MAGIC_AT

BLOCK = 512

_WINDOW = 4096  # bytes that are read at once: several headers, where members are small
_PIECE = 1 << 20
_MOST_HEADER_BYTES = 1 << 20  # of pax headers and long names
_ADLER = 65521
_TELLING = (b"path", b"size", b"GNU.sparse")  # of pax headers: the others are not needed here
_REGULAR = (b"0", b"\0", b"7")
_WITHOUT_DATA = (b"1", b"2", b"3", b"4", b"5", b"6")  # links, devices, folders, pipes
_LONG_NAME, _LONG_LINK, _SPARSE, _GLOBAL = b"L", b"K", b"S", b"g"
_EXTENSIONS = (b"x", b"X", _GLOBAL, _LONG_NAME, _LONG_LINK)  # headers of their own, with content


class Member(NamedTuple):
    """A regular file in an archive."""

    name: str
    start: int
    size: int
    archive: int  # the number of archives that ended before it in this file


class TarWalk:
    """Goes through the members of an open file once."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        self._file, self._path = file, path
        self._size = file.seek(0, os.SEEK_END)
        self._fixed: dict[str, str] = {}  # from global pax headers
        self._told: dict[str, str] = {}  # from headers about the next member
        self._window, self._window_at = b"", 0
        self.has_end = False  # True behind a block of zeros

    def __iter__(self) -> Iterator[Member]:
        at, archive = 0, 0
        while at < self._size:
            header = self._read(at, BLOCK)
            self.has_end = not header[0] and header.count(0) == BLOCK
            if self.has_end:
                at, archive = self._behind_zeros(at), archive + 1
                continue
            self._check(header, at)
            kind, size, begin = header[156:157], self._size_of(header, at), at + BLOCK
            if kind in _EXTENSIONS:
                self._extend(kind, begin, size, at)
                at = _next(begin, size)
                continue
            name = _name(header)
            if self._fixed or self._told:
                name, size = self._extended(name, size, at)
            if kind in _WITHOUT_DATA:
                at = begin
                continue
            if kind == _SPARSE:
                raise self._sparse(name, at)
            if _next(begin, size) > self._size:  # its padding belongs to it
                raise FileError(
                    f"{self._path} is cut off: {name!r} ends at byte {_next(begin, size)}, and the "
                    f"file has {self._size}."
                )
            if kind in _REGULAR and not name.endswith("/"):  # old programs write folders so
                yield Member(name, begin, size, archive)
            at = _next(begin, size)

    def _extend(self, kind: bytes, begin: int, size: int, at: int) -> None:
        """Reads a header about the next member, or about all members that follow.

        Where several are about one member, the first counts, as in Python's own `tarfile`.
        """
        if size > _MOST_HEADER_BYTES:
            raise self._damaged(at, f"a header has {size} bytes, which none needs")
        content = self._read(begin, size)
        if kind == _LONG_NAME:
            self._told.setdefault("path", _text(content.split(b"\0")[0]))
        elif kind == _GLOBAL:
            self._fixed.update(self._pax(content, at))
        elif kind != _LONG_LINK:
            self._told = self._pax(content, at) | self._told

    def _extended(self, name: str, size: int, at: int) -> tuple[str, int]:
        """Name and size of a member, with the headers before it taken into account."""
        told = {**self._fixed, **self._told}
        self._told = {}
        name = told.get("path", name)
        if any(key.startswith("GNU.sparse") for key in told):
            raise self._sparse(name, at)
        text = told.get("size")
        if text is None:
            return name, size
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise self._damaged(at, f"a pax header has the size {text!r}")
        return name, int(text)

    # Reading ----------------------------------------------------------------------------------

    def _read(self, at: int, count: int) -> bytes:
        start = at - self._window_at
        if start < 0 or start + count > len(self._window):
            self._window = self._read_at(at, max(count, _WINDOW))
            self._window_at, start = at, 0
            if len(self._window) < count:
                what = "is cut off" if at else "is cut off, or it is not a tar file"
                raise FileError(f"{self._path} {what}: it ends within a header, at byte {at}.")
        return self._window[start : start + count]

    def _read_at(self, at: int, count: int) -> bytes:
        if hasattr(os, "pread"):  # one system call in place of two; not on Windows
            return os.pread(self._file.fileno(), count, at)
        self._file.seek(at)
        return self._file.read(count)

    def _behind_zeros(self, at: int) -> int:
        """The first byte that is not zero, which must be the beginning of another archive."""
        while at < self._size:
            piece = self._read_at(at, _PIECE)
            if not piece:
                break
            left = len(piece) - len(piece.lstrip(b"\0"))
            if left < len(piece):
                at += left // BLOCK * BLOCK
                if at + BLOCK > self._size:
                    raise self._damaged(at, "bytes that are no archive follow its end")
                return at
            at += left
        return self._size

    # Headers ----------------------------------------------------------------------------------

    def _check(self, header: bytes, at: int) -> None:
        """Compares the checksum: the sum of all bytes, with its own field counted as spaces."""
        stored = _octal(header[148:156])
        blanked = header[:148] + b"        " + header[156:]
        if stored is not None and 0 <= stored <= 255 * BLOCK:
            # Adler's sum is 1 + the sum of bytes, modulo a prime, at a tenth of the cost of `sum`.
            if ((zlib.adler32(blanked) & 0xFFFF) - 1 - stored) % _ADLER == 0:
                return
            signed = sum(byte - 256 if byte > 127 else byte for byte in blanked)
            if signed == stored:  # some old programs write this sum
                return
        raise self._damaged(at, "a header does not agree with its checksum")

    def _size_of(self, header: bytes, at: int) -> int:
        size = number(header[124:136])
        if size is None or size < 0:
            raise self._damaged(at, f"a member has the size {header[124:136]!r}")
        return size

    def _pax(self, content: bytes, at: int) -> dict[str, str]:
        """Entries such as ``30 path=some/long/name.jpg`` with their own length in front."""
        found: dict[str, str] = {}
        if not any(word in content for word in _TELLING):
            return found  # mostly a time with fractions
        while content.strip(b"\0"):
            text, blank, _ = content[:20].partition(b" ")
            length = int(text) if blank and text.isdigit() else 0
            entry = content[len(text) + 1 : length - 1]
            key, equals, value = entry.partition(b"=")
            if length > len(content) or not equals or content[length - 1 : length] != b"\n":
                raise self._damaged(at, "a pax header cannot be read")
            found[_text(key)] = _text(value)
            content = content[length:]
        return found

    def _sparse(self, name: str, at: int) -> FileError:
        return FileError(
            f"{self._path}: {name!r} (byte {at}) is stored as a sparse file, whose bytes are not "
            "together. Write the archive again without --sparse."
        )

    def _damaged(self, at: int, what: str) -> FileError:
        return FileError(f"{self._path} is damaged, or not a tar file: {what} (byte {at}).")


def number(field: bytes) -> int | None:
    """The number in a field of a header: octal digits, or base 256 for large ones; None if neither.

    >>> number(b"0000644\\0"), number(b"\\x80\\0\\0\\0\\0\\0\\1\\0")
    (420, 256)
    """
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    return _octal(field)


def _octal(field: bytes) -> int | None:
    digits = field.rstrip(b"\0 ")
    try:
        return int(digits, 8) if digits else 0
    except ValueError:
        pass
    try:
        return int(field.split(b"\0")[0].strip() or b"0", 8)
    except ValueError:
        return None


def _name(header: bytes) -> str:
    name = header[:100].split(b"\0", 1)[0]
    if header[345] and header[TAR_MAGIC_AT : TAR_MAGIC_AT + 6] != b"ustar ":  # GNU: times
        name = header[345:500].split(b"\0", 1)[0] + b"/" + name
    return _text(name)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _next(begin: int, size: int) -> int:
    """Where the header behind a member's data lies."""
    return begin + (size + BLOCK - 1) // BLOCK * BLOCK
