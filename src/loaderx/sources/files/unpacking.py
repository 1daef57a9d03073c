"""Unpacks members of zip files only as far as they are read, and values up to a bound (`inflated`).

`zipfile` does the former for deflate, but reads the whole directory before it opens a member.  For
bzip2 and LZMA it unpacks the next 4 kB of input completely, which can be gigabytes, and it
allocates the window that an LZMA stream asks for.  So this module has its own readers of members.
"""

from __future__ import annotations

import bz2
import lzma
import struct
import zipfile
import zlib
from typing import BinaryIO

from loaderx.errors import FileError, bytes_setting

_PIECE = 1 << 16
_LZMA_HEADER = struct.Struct("<2xHBI")  # length of the properties: parameters, window
_LEAST_WINDOW = 4096
UNPACK_LIMIT = "LOADERX_UNPACK_LIMIT"
_GZIP = 31  # as zlib calls it
SMALL, RATIO = 64 << 20, 100  # bytes, and multiple of the packed size, that anything may unpack to


def most_unpacked(packed: int) -> int:
    """How many bytes data of unknown unpacked size may unpack to in memory."""
    return bytes_setting(UNPACK_LIMIT, max(SMALL, RATIO * packed))


def too_large(most: int) -> FileError:
    """The error for data that unpacks to more than ``most`` bytes."""
    return FileError(
        f"it unpacks to more than the {most} bytes that it may have. If it is right, set "
        f"{UNPACK_LIMIT} to the bytes that one value may have."
    )


def inflated(data: bytes, most: int, *, is_gzip: bool = False) -> bytes:
    """Unpacks zlib or gzip data of at most ``most`` unpacked bytes."""
    found, left = list[bytes](), most
    while data:
        unpacker = zlib.decompressobj(_GZIP if is_gzip else zlib.MAX_WBITS)
        found.append(unpacker.decompress(data, left + 1))
        left -= len(found[-1])
        if left < 0:
            raise too_large(most)
        if not unpacker.eof:
            raise EOFError("what is compressed is cut off")
        data = unpacker.unused_data.lstrip(b"\0") if is_gzip else b""
    return found[0] if len(found) == 1 else b"".join(found)


class Unpacked:
    """Reads a member from its beginning."""

    def __init__(self, file: BinaryIO, start: int, info: zipfile.ZipInfo) -> None:
        self._file = file
        self._at, self._end = start, start + info.compress_size
        self._left, self._crc, self._expected_crc = info.file_size, 0, info.CRC
        self._unpacker = self._find_unpacker(info.compress_type)

    def _find_unpacker(self, kind: int) -> lzma.LZMADecompressor | bz2.BZ2Decompressor | _Deflate:
        if kind == zipfile.ZIP_DEFLATED:
            return _Deflate()
        if kind == zipfile.ZIP_LZMA:
            return self._lzma()
        if kind == zipfile.ZIP_BZIP2:
            return bz2.BZ2Decompressor()
        raise zipfile.BadZipFile(f"it is packed in a way that is not known ({kind})")

    def read(self, nbytes: int) -> bytes:
        """The next bytes, fewer at the end of the member."""
        wanted = min(nbytes, self._left)
        out = bytearray()
        while len(out) < wanted and not self._unpacker.eof:
            packed = self._packed(_PIECE) if self._unpacker.needs_input else b""
            piece = self._unpacker.decompress(packed, wanted - len(out))
            if not piece and not packed:
                break
            out += piece
        self._left -= len(out)
        self._crc = zlib.crc32(out, self._crc)
        if not self._left and self._crc != self._expected_crc:
            raise zipfile.BadZipFile("the checksum is wrong")
        return bytes(out)

    def _packed(self, most: int) -> bytes:
        self._file.seek(self._at)
        data = self._file.read(min(most, self._end - self._at))
        self._at += len(data)
        return data

    def _lzma(self) -> lzma.LZMADecompressor:
        _, parameters, window = _LZMA_HEADER.unpack(self._packed(_LZMA_HEADER.size))
        rest, lc = divmod(parameters, 9)
        pb, lp = divmod(rest, 5)
        window = max(_LEAST_WINDOW, min(window, self._left))  # the data needs no larger one
        chain = {"id": lzma.FILTER_LZMA1, "lc": lc, "lp": lp, "pb": pb, "dict_size": window}
        return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=[chain])


class _Deflate:
    """Inflates, with the interface of the two other unpackers."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(-zlib.MAX_WBITS)

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def needs_input(self) -> bool:
        return not self._stream.unconsumed_tail

    def decompress(self, data: bytes, most: int) -> bytes:
        return self._stream.decompress(self._stream.unconsumed_tail + data, most)
