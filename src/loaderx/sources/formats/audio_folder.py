"""Folders of sound, ``class/clip.wav``, with or without folders for splits; and audio files."""

from __future__ import annotations

from loaderx.sources.base import Source
from loaderx.sources.format import Folder, OpenOptions, Splits
from loaderx.sources.formats.image_folder import is_media_folder, media_splits, open_media
from loaderx.sources.formats.media import AUDIO


def is_folder(folder: Folder) -> bool:
    """True if there is sound in it, and no files that another format would read."""
    return is_media_folder(folder, AUDIO)


def folder_splits(folder: Folder, options: OpenOptions) -> Splits:
    return media_splits(folder, options, AUDIO)


def open_files(files: list[str], options: OpenOptions) -> Source:
    """The records of files that were named one by one: ``{"audio", "sampling_rate"}``."""
    return open_media(files, options, AUDIO)
