"""Images with the frequencies of photographs, encoded, and exact references to compare with."""

from __future__ import annotations

import io

import numpy as np


def photo(height, width, seed=0):
    """uint8[height, width, 3]: as in photographs, amplitudes fall with the frequency."""
    rng, shape = np.random.default_rng(seed), (height, width)
    frequencies = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    frequencies[0, 0] = 1
    shared, *own = (
        np.fft.irfft2(np.fft.rfft2(rng.standard_normal(shape)) / frequencies**1.1, shape)
        for _ in range(4)
    )
    planes = np.stack([shared + 0.3 * plane for plane in own], -1)
    planes = (planes - planes.mean()) / planes.std()
    return np.clip(planes * 50 + 127, 0, 255).astype(np.uint8)


def encoded(array, kind="JPEG", **options):
    from PIL import Image

    image = array if isinstance(array, Image.Image) else Image.fromarray(array)
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def area_resize(pixels, box, size):
    """Every pixel is the mean of the area that it covers; a box is top, left, height, width."""
    top, left, height, width = box
    rows = _shares(top, height, size[0], pixels.shape[0])
    columns = _shares(left, width, size[1], pixels.shape[1])
    return np.einsum("ih,hwc,jw->ijc", rows, pixels.astype(float), columns, optimize=True)


def _shares(start, length, count, have):
    edges = start + length * np.arange(count + 1) / count
    pixels = np.arange(have)
    covered = np.minimum(pixels + 1, edges[1:, None]) - np.maximum(pixels, edges[:-1, None])
    covered = np.maximum(covered, 0)
    return covered / covered.sum(1, keepdims=True)


def psnr(one, other):
    """In decibels; infinite where both are equal."""
    error = np.mean((np.asarray(one, float) - np.asarray(other, float)) ** 2)
    return np.inf if error == 0 else 10 * np.log10(255**2 / error)
