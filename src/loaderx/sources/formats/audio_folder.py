"""Folders of sound, ``class/clip.wav``, with or without folders for splits; and audio files."""

from __future__ import annotations

from functools import partial

from loaderx.sources.formats import image_folder
from loaderx.sources.formats.media import AUDIO

is_folder = partial(image_folder.is_folder, media=AUDIO)
folder_splits = partial(image_folder.folder_splits, media=AUDIO)
open_files = partial(image_folder.open_files, media=AUDIO)
