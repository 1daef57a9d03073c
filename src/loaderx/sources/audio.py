"""Decodes audio files to arrays: float32[samples], or float32[samples, channels] if several.

libsndfile reads them, by the package soundfile (the extra ``audio``): WAV, FLAC, Ogg, MP3 and more.
Samples are from -1 to 1, at the rate of the file.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np
import numpy.typing as npt

from loaderx.errors import MissingPackageError, one_line
from loaderx.sources.base import BadRecordError

if TYPE_CHECKING:
    from soundfile import SoundFile

AUDIO_SUFFIXES = (
    ".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".au", ".caf", ".w64",
)  # fmt: skip
"""The endings of audio files, in lower case."""

_AT_ONCE = 1 << 18  # samples: a damaged header may claim terabytes
_STREAMED = 0x7F000000  # bytes that WAV files claim whose length was not known beforehand

T = TypeVar("T")


def decode_audio(data: bytes) -> npt.NDArray[np.float32]:
    """The samples of an encoded audio file; one without any is damaged, or of no use."""
    has, told = len(data) - 8, int.from_bytes(data[4:8], "little")
    if data.startswith(b"RIFF") and has < told < _STREAMED:  # libsndfile would give a part
        raise BadRecordError(f"the audio is cut off: {has} of {told} bytes are there.")
    found = _read(data, _samples)
    if not len(found):
        raise BadRecordError("the audio has no samples.")
    return found


def _samples(file: SoundFile) -> npt.NDArray[np.float32]:
    pieces = [file.read(_AT_ONCE, dtype="float32")]
    while len(pieces[-1]) == _AT_ONCE:
        pieces.append(file.read(_AT_ONCE, dtype="float32"))
    return np.concatenate(pieces) if len(pieces) > 1 else pieces[0]


def sampling_rate(data: bytes) -> np.int32:
    """The samples per second of an encoded audio file; only its header is decoded."""
    return np.int32(_read(data, lambda file: file.samplerate))


class _Bytes(io.BytesIO):
    def seek(self, offset: int, whence: int = 0) -> int:
        """Of damaged files, libsndfile looks before the start: an error would only be printed."""
        with contextlib.suppress(ValueError):
            return super().seek(offset, whence)
        return -1


def _read(data: bytes, read: Callable[[SoundFile], T]) -> T:
    soundfile = soundfile_module()
    try:
        with soundfile.SoundFile(_Bytes(data)) as file:
            return read(file)
    except soundfile.SoundFileError as error:
        raise BadRecordError(
            f"the audio is damaged, or of a format not known, {len(data)} bytes: {one_line(error)}"
        ) from error


@cache
def soundfile_module() -> ModuleType:
    """The decoder; raises if it is not installed."""
    try:
        import soundfile
    except ImportError as error:
        raise MissingPackageError(
            "decoding audio needs soundfile: pip install 'loaderx-jax[audio]'. Without it, "
            "decode=False gives the bytes of the files."
        ) from error
    return cast(ModuleType, soundfile)
