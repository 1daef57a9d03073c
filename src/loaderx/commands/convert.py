"""Save the records of files in the native layout, which is read fastest.

Images stay as they are in their files, and are not decoded, unless --decode,
--resize or --skip-bad is given. If it is stopped, run the same command to
resume.

examples:
  loaderx convert table.parquet prepared --columns id,text
  loaderx convert photos prepared --split train --resize 256 --skip-bad
  loaderx convert photos prepared --shard 0/8
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys

import numpy as np

from loaderx import Dataset, engines, image
from loaderx.commands.head import at_least_one
from loaderx.commands.opening import Opening, add_opening
from loaderx.commands.terminal import faint, say
from loaderx.display.values import plain_text, size_text
from loaderx.errors import ArgumentError, FileError, LoaderxError, RecordError, StackError
from loaderx.frozen import Frozen
from loaderx.loader.failures import Failure
from loaderx.sources.images import decode_image
from loaderx.sources.native.save_folder import folder_path, saved_description
from loaderx.tree import flatten

_ENGINES = ("auto", "inline", "threads", "processes", "ray")
_MOST_NAMED = 20  # records that are left out
_LOOKED_AT = 16  # records to look at for the first that can be read


def add(command: argparse.ArgumentParser) -> None:
    add_opening(command, "SRC")
    command.add_argument("target", metavar="DST", help="a folder that is new or empty, or its URL")
    command.add_argument("--decode", action="store_true", help="keep the pixels of images")
    command.add_argument("--resize", type=_size, metavar="SIZE", help="to 256, or to 240x320")
    command.add_argument("--skip-bad", action="store_true", help="leave out what is damaged")
    command.add_argument(
        "--workers", "--num-workers", type=at_least_one, metavar="N", help="to use at most"
    )
    engine = command.add_argument("--engine", choices=_ENGINES, default="auto")
    engine.help = "what runs the workers; ray uses a cluster whose machines all reach DST"
    shard = command.add_argument("--shard", type=_shard, metavar="I/N")
    shard.help = "save only a part: run the command N times, with 0/N, 1/N, ..., on any machines"


def _size(text: str) -> tuple[int, int]:
    sides = text.split("x")
    if len(sides) < 3 and all(side.isdecimal() and int(side) for side in sides):
        return int(sides[0]), int(sides[-1])
    raise argparse.ArgumentTypeError(f"must be a side or HEIGHTxWIDTH, such as 256, got {text!r}")


def _shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if index.isdecimal() and count.isdecimal() and int(index) < int(count):
        return int(index), int(count)
    raise argparse.ArgumentTypeError(f"must be one of 0/N to (N - 1)/N, such as 0/8, got {text!r}")


def run(options: argparse.Namespace) -> bool:
    """Saves what `Dataset.open` finds at a path, with images as they are in their files."""
    if options.skip_bad and options.shard:
        raise ArgumentError(
            "--skip-bad and --shard cannot be used together: how many records are left is known "
            "when all have been read. Save the good ones of all at once."
        )
    opening = Opening(options)
    dataset = opening.dataset()
    every, images = len(dataset), list[str]()
    if options.resize or not options.decode:
        dataset, images = _with_encoded_images(opening, dataset)
    if options.resize:
        if not images:
            raise ArgumentError(f"--resize needs images, and {options.path} has none.")
        for name in images:
            dataset = dataset.map(image.resize(options.resize, key=name))
        images = []
    if options.skip_bad:
        dataset = (dataset.map(_Decodable(images)) if images else dataset).on_error("skip")
    names_bad_records = _NamesBadRecords()
    logging.getLogger("loaderx").addHandler(names_bad_records)
    engine, workers = options.engine, options.workers
    if engine == "ray":  # has only a class, since most programs do without it
        engine, workers = getattr(engines, engine.capitalize())(num_workers=workers), None
    try:
        dataset.save(
            options.target, images=images, engine=engine, num_workers=workers, shard=options.shard
        )
    except StackError as error:
        raise StackError(f"{error} Or leave the column out, with --columns a,b,c.") from error
    except RecordError as error:
        if options.skip_bad:
            raise
        raise FileError(f"{error}. To leave out such records, say --skip-bad.") from error
    except KeyboardInterrupt:
        sys.stderr.write("\nstopped: run the same command to resume\n")
        raise
    finally:
        logging.getLogger("loaderx").removeHandler(names_bad_records)
    _report(options, every, images=bool(images) and not options.skip_bad)
    return True


class _NamesBadRecords(logging.Handler):
    """Names the first records that are left out on standard error."""

    left = _MOST_NAMED

    def emit(self, record: logging.LogRecord) -> None:
        if self.left and isinstance(record.args, tuple) and isinstance(record.args[0], Failure):
            self.left, one = self.left - 1, record.args[0]
            sys.stderr.write(f"left out: {plain_text(f'{one.record}: {one.error}')}\n")


class _Decodable(Frozen):
    """Refuses records with images that cannot be decoded; the others stay as they are."""

    images: list[str]

    def __call__(self, record: dict[str, object]) -> dict[str, object]:
        for name in self.images:
            decode_image(record[name])  # type: ignore[arg-type]
        return record


def _with_encoded_images(
    opening: Opening, decoded: Dataset[dict[str, object]]
) -> tuple[Dataset[dict[str, object]], list[str]]:
    """The dataset with the bytes of images in place of their pixels, and which leaves these are."""
    encoded = opening.dataset(decode=False)
    place = _first_readable(decoded)
    first, raw = decoded[place], encoded[place]
    if not isinstance(first, dict) or not isinstance(raw, dict) or first.keys() != raw.keys():
        return decoded, []
    images = [name for name in first if _is_image(first[name], raw[name])]
    others = [name for name in first if name not in images]
    if not images:
        return decoded, []
    if all(_are_equal(first[name], raw[name]) for name in others):
        return encoded, images
    parts = opening.dataset(columns=others), opening.dataset(decode=False, columns=images)
    return Dataset.zip(parts).map(_joined), images


def _first_readable(dataset: Dataset[dict[str, object]]) -> int:
    """The first record that can be read; 0 if none of the first can."""
    for place in range(min(_LOOKED_AT, len(dataset))):
        with contextlib.suppress(LoaderxError):
            dataset[place]
            return place
    return 0


def _is_image(decoded: object, raw: object) -> bool:
    """Whether these are the pixels of that image."""
    if not isinstance(raw, bytes) or not isinstance(decoded, np.ndarray):
        return False
    try:
        return _are_equal(decode_image(raw), decoded)
    except FileError:
        return False


def _are_equal(one: object, two: object) -> bool:
    leaves, structure = flatten(one)
    others, other = flatten(two)
    return structure is other and all(map(_is_same, leaves, others))


def _is_same(one: object, two: object) -> bool:
    return type(one) is type(two) and bool(np.array_equal(one, two))  # type: ignore[arg-type]


def _joined(parts: tuple[dict[str, object], dict[str, object]]) -> dict[str, object]:
    return {**parts[0], **parts[1]}


def _report(options: argparse.Namespace, every: int, *, images: bool) -> None:
    target, shard = options.target, options.shard
    found = saved_description(folder_path("folder", target))
    if found is None:
        assert shard is not None
        say(f"shard {shard[0]}/{shard[1]} is saved, others are not yet: {target}")
        return
    nbytes = size_text(sum(size for part in found.parts for size in part.files.values()))
    count = f"{len(found.parts):,} part{'s' if len(found.parts) != 1 else ''}"
    say(f"{found.records:,} records, {nbytes} in {count}: {target}")
    if found.records < every:
        bad = every - found.records
        say(f"{bad:,} bad records were left out: loaderx verify {options.path} lists them")
    if images:
        say(faint(f"images were copied unseen: loaderx verify {target} decodes them"))
    say(faint(f"open it: Dataset.open({json.dumps(target)})"))
