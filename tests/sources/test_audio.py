"""Encoded sound as arrays."""

from __future__ import annotations

import builtins
import contextlib
import io
import wave

import numpy as np
import pytest

from loaderx import Dataset, MissingPackageError
from loaderx.sources import audio
from loaderx.sources.audio import decode_audio, sampling_rate
from loaderx.sources.base import BadRecordError

soundfile = pytest.importorskip("soundfile", reason="soundfile (the extra audio) is not installed")

TONE = (np.sin(np.arange(4000) / 9) / 2).astype(np.float32)
STEREO = np.stack([TONE, -TONE], 1)


def encoded(samples, kind, rate=8000, **options):
    out = io.BytesIO()
    soundfile.write(out, samples, rate, format=kind, **options)
    return out.getvalue()


def pcm(samples, rate=16000):
    """16-bit WAV, by Python's own module."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((1 if samples.ndim == 1 else samples.shape[1], 2, rate, 0, "NONE", ""))
        file.writeframes(samples.astype("<i2").tobytes())
    return out.getvalue()


def test_16_bit_numbers_are_divided_by_their_range():
    numbers = np.array([0, 1, -1, 1 << 14, -(1 << 15), (1 << 15) - 1])
    found = decode_audio(pcm(numbers))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, (numbers / 32768).astype(np.float32))


@pytest.mark.parametrize("samples", [TONE, STEREO], ids=["mono", "stereo"])
@pytest.mark.parametrize(
    ("kind", "options", "tolerance"),
    [
        ("WAV", {"subtype": "FLOAT"}, 0),
        ("FLAC", {}, 2**-15),
        ("AIFF", {}, 2**-15),
        ("OGG", {}, 0.1),
        ("MP3", {}, 0.1),
    ],
)
def test_formats(samples, kind, options, tolerance):
    data = encoded(samples, kind, 16000, **options)
    found, rate = decode_audio(data), sampling_rate(data)
    assert found.dtype == np.float32
    assert (rate, rate.dtype) == (16000, np.int32)
    assert found.shape == samples.shape
    np.testing.assert_allclose(found, samples, atol=tolerance)


@pytest.mark.parametrize("read", [decode_audio, sampling_rate])
def test_damage(read):
    for data in (b"", b"no sound at all", encoded(TONE, "FLAC")[:30]):
        message = f"the audio is damaged, or of a format not known, {len(data)} bytes: "
        with pytest.raises(BadRecordError, match=message):
            read(data)


def test_long_files_are_read_in_pieces():
    samples = np.arange(1 << 19, dtype=np.int16)
    np.testing.assert_array_equal(decode_audio(pcm(samples)), samples.astype(np.float32) / 32768)


def test_files_that_are_cut_off():
    data = pcm(np.arange(1000))
    with pytest.raises(BadRecordError, match="the audio is cut off: 1992 of 2036 bytes are there"):
        decode_audio(data[:2000])
    streamed = data[:4] + b"\xff" * 4 + data[8:]  # the length was not known beforehand
    assert len(decode_audio(streamed)) == 1000
    for kind in ("FLAC", "OGG", "CAF"):
        whole = encoded(TONE, kind)
        with pytest.raises(BadRecordError, match="the audio is damaged|has no samples"):
            decode_audio(whole[: len(whole) // 2])


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "AIFF"])
def test_damaged_bytes_are_bad_records(kind):
    data, draw = encoded(TONE, kind), np.random.default_rng(0)
    for _ in range(100):
        damaged = bytearray(data[: draw.integers(len(data))] if draw.random() < 0.3 else data)
        for place in draw.integers(len(damaged) or 1, size=3) if damaged else ():
            damaged[min(place, draw.integers(100))] = draw.integers(256)
        with contextlib.suppress(BadRecordError):
            assert decode_audio(bytes(damaged)).dtype == np.float32


def test_a_header_may_claim_anything(monkeypatch):
    """It would be terabytes."""

    class Claims(soundfile.SoundFile):
        def read(self, frames=-1, dtype="float64"):
            assert 0 < frames < 1 << 20
            return super().read(frames, dtype)

    monkeypatch.setattr(soundfile, "SoundFile", Claims)
    assert len(decode_audio(encoded(TONE, "FLAC"))) == len(TONE)


def test_without_the_package(tmp_path, monkeypatch):
    (tmp_path / "a.wav").write_bytes(pcm(np.zeros(3)))
    plain = builtins.__import__

    def without(name, *args, **options):
        if name == "soundfile":
            raise ImportError(name)
        return plain(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    audio.soundfile_module.cache_clear()
    with pytest.raises(MissingPackageError, match=r"pip install 'loaderx-jax\[audio\]'"):
        Dataset.open(tmp_path)
    assert Dataset.open(tmp_path, decode=False)[0] == {"audio": pcm(np.zeros(3))}
    monkeypatch.undo()
    audio.soundfile_module.cache_clear()
