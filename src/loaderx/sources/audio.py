"""Decodes audio files to arrays: float32[samples], or float32[samples, channels] if several.

libsndfile reads them, by the package soundfile (the extra ``audio``): WAV, FLAC, Ogg, MP3 and more.
Samples are from -1 to 1, at the rate of the file.
"""

from __future__ import annotations

import io
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, cast

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


def decode_audio(data: bytes) -> npt.NDArray[np.float32]:
    """The samples of an encoded audio file."""
    try:
        with _opened(data) as file:
            return cast("npt.NDArray[np.float32]", file.read(dtype="float32"))
    except soundfile_module().SoundFileError as error:
        raise _damaged(data, error) from error


def sampling_rate(data: bytes) -> np.int32:
    """The samples per second of an encoded audio file; only its header is decoded."""
    try:
        with _opened(data) as file:
            return np.int32(file.samplerate)
    except soundfile_module().SoundFileError as error:
        raise _damaged(data, error) from error


def _opened(data: bytes) -> SoundFile:
    return cast("SoundFile", soundfile_module().SoundFile(io.BytesIO(data)))


def _damaged(data: bytes, error: Exception) -> BadRecordError:
    if not data:
        return BadRecordError("the audio file has no bytes.")
    return BadRecordError(f"the audio is damaged, or of a format not known: {one_line(error)}")


def check_audio() -> None:
    """Raises if soundfile is not installed: when files are opened, not at the first record."""
    soundfile_module()


@cache
def soundfile_module() -> ModuleType:
    try:
        import soundfile
    except ImportError as error:
        raise MissingPackageError(
            "decoding audio needs soundfile: pip install 'loaderx-jax[audio]'. Without it, "
            "decode=False gives the bytes of the files."
        ) from error
    return cast(ModuleType, soundfile)
