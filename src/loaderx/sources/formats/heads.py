"""The first bytes of files, by which their formats are known.

They stand here, apart from the formats, so that the other formats need not be imported to open one.
"""

from __future__ import annotations

from loaderx.sources.files.npy import MAGIC as NPY_MAGIC
from loaderx.sources.formats.tf.frames import is_frame, is_zlib_frame

ARROW_FILE, OLD_FEATHER, ARROW_STREAM = b"ARROW1", b"FEA1", b"\xff\xff\xff\xff"
HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
RIEGELI_SIGNATURE = bytes.fromhex(
    "83af70d10d884a3f0000000000000000400000000000000091bac23c9287e1a9"
)
TAR_MAGIC, TAR_MAGIC_AT = b"ustar", 257
MOST_SAFETENSORS_HEADER = 100_000_000  # bytes, as the format has it
_MOST_ARROW_METADATA = 1 << 28  # bytes of the first message of a stream, its schema
_IMAGES = (
    b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*",
)  # fmt: skip
_SOUNDS = (b"fLaC", b"OggS", b"ID3", b".snd", b"caff", b"riff")
_IDX_TYPES = (b"\x08", b"\x09", b"\x0b", b"\x0c", b"\x0d", b"\x0e")


def is_array_record(head: bytes) -> bool:
    return head.startswith(RIEGELI_SIGNATURE)


def is_arrow(head: bytes) -> bool:
    if head.startswith((ARROW_FILE, OLD_FEATHER)):
        return True
    length = int.from_bytes(head[4:8], "little")
    return head.startswith(ARROW_STREAM) and 8 <= length < _MOST_ARROW_METADATA


def is_audio(head: bytes) -> bool:
    is_wave = head[:4] == b"RIFF" and head[8:12] == b"WAVE"
    is_aiff = head[:4] == b"FORM" and head[8:11] == b"AIF"
    is_mp3 = head[:1] == b"\xff" and len(head) > 1 and head[1] & 0xE6 == 0xE2  # without tags
    return is_wave or is_aiff or is_mp3 or head.startswith(_SOUNDS)


def is_hdf5(head: bytes) -> bool:
    # Behind a user block of 512, 1024, ... bytes the mark comes later; then the suffix decides.
    return head.startswith(HDF5_MAGIC)


def is_idx(head: bytes) -> bool:
    if len(head) <= 4:
        return False
    return head[:2] == b"\0\0" and head[2:3] in _IDX_TYPES and 1 <= head[3] <= 4


def is_image(head: bytes) -> bool:
    is_webp = head[:4] == b"RIFF" and head[8:12] == b"WEBP"
    is_bmp = head[:2] == b"BM" and head[6:10] == bytes(4)
    return is_webp or is_bmp or head.startswith(_IMAGES)


def is_megatron(head: bytes) -> bool:
    return head.startswith(MEGATRON_MAGIC)


def is_npy(head: bytes) -> bool:
    return head.startswith((NPY_MAGIC, b"PK\x03\x04"))


def is_parquet(head: bytes) -> bool:
    return head.startswith((b"PAR1", b"PARE"))


def is_safetensors(head: bytes) -> bool:
    length = int.from_bytes(head[:8], "little")
    return len(head) > 9 and head[8:9] == b"{" and length < MOST_SAFETENSORS_HEADER


def is_tar(head: bytes) -> bool:
    return head[TAR_MAGIC_AT : TAR_MAGIC_AT + len(TAR_MAGIC)] == TAR_MAGIC


def is_tfrecord(head: bytes) -> bool:
    return is_frame(head) or is_zlib_frame(head)
