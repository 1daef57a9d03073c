"""Stages for images.  This module is imported when it is first used."""

from loaderx.image.normalizing import normalize

__all__ = ["normalize"]
