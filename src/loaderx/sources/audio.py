"""Decodes audio files to arrays: float32[samples], or float32[samples, channels] if several.

libsndfile reads them, by the package soundfile (the extra ``audio``): WAV, FLAC, Ogg, MP3 and more.
Samples are from -1 to 1, at the rate of the file.
"""

from __future__ import annotations

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

T = TypeVar("T")


def decode_audio(data: bytes) -> npt.NDArray[np.float32]:
    """The samples of an encoded audio file."""
    return _read(data, lambda file: file.read(dtype="float32"))


def sampling_rate(data: bytes) -> np.int32:
    """The samples per second of an encoded audio file; only its header is decoded."""
    return np.int32(_read(data, lambda file: file.samplerate))


def _read(data: bytes, read: Callable[[SoundFile], T]) -> T:
    soundfile = soundfile_module()
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
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
