"""WebDataset: tar files whose members are grouped into samples by their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import numpy as np

from loaderx.errors import ArgumentError, FileError, MissingPackageError, warn_user
from loaderx.sources.base import BadRecordError, FileSource, Indices, Source
from loaderx.sources.cache.folder import CacheArgument, CacheFolder, cache_folder
from loaderx.sources.columns.elements import file_bytes
from loaderx.sources.decoding import Decoding, check_decode
from loaderx.sources.files.cold import ColdReads, Span
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.files.parts import Located, in_places
from loaderx.sources.files.paths import PathLike, find
from loaderx.sources.files.record_files import RecordFiles
from loaderx.sources.format import OpenOptions, check_columns, check_named
from loaderx.sources.formats.tar.index import SampleMembers, TarIndex
from loaderx.sources.formats.tar.values import Decoder, decoder_of, is_pickle, reason

KEY = "__key__"


class WebDataset(FileSource):
    """Samples of tar files: records ``{"__key__", "jpg", "cls", ...}`` by the endings of members.

    Args:
        paths: a tar file, a pattern, or a list; not compressed.
        columns: the endings to read, and ``"__key__"``; all by default. Others are not
            read. A sample that lacks one of them is an error when the dataset is made; by
            default, samples that lack some have fewer leaves.
        decode: False gives the bytes of all members.
        fill: values for members that a sample lacks, by ending.
        channels: 1, 3 or 4 makes all images gray, RGB or RGBA; None leaves what the files have.
        cache: as in `Dataset.open`; the index is kept there.
    """

    def __init__(
        self,
        paths: PathLike | Sequence[PathLike],
        *,
        columns: Sequence[str] | None = None,
        decode: bool | Decoding = True,
        fill: Mapping[str, object] | None = None,
        channels: int | None = None,
        cache: CacheArgument | CacheFolder = None,
    ) -> None:
        if channels not in (None, 1, 3, 4):
            raise ArgumentError(f"`channels` must be None, 1, 3 or 4, got {channels!r}.")
        folder = cache_folder(cache)
        found = find(paths, folder.files)
        if found.folder is not None:
            raise ArgumentError(f"{found.folder} is a folder: write {found.folder}/*.tar.")
        self._files = FileSet(found.files, files=folder.files)
        self._index = TarIndex(self._files, folder)
        self._reader = RecordFiles(self._files, self._index.samples, "sample")
        _check_shards(self._files, self._index)
        have = [KEY, *{ending: 0 for shard in self._index.shards for ending in shard.endings}]
        check_named("fill", fill or {}, have, found.files[0])
        self._chosen = have if columns is None else check_columns(columns, have, found.files[0])
        self._is_chosen = columns is not None
        self._fill = {name: value for name, value in (fill or {}).items() if name in self._chosen}
        if self._is_chosen:
            self._check_complete()
        decoding = check_decode(decode)
        check_named("decode", decoding.leaves, have, found.files[0])
        ways = {name: decoding.leaves.get(name, decoding.way) for name in self._chosen}
        _refuse_pickles([name for name, way in ways.items() if way], found.files[0])
        self._decoders: dict[str, Decoder | None] = {
            name: decoder_of(name, way, channels) if way else None for name, way in ways.items()
        }
        self._bytes = file_bytes(self._files, self._damaged)
        self._cold = ColdReads(find=self._spans)
        self._endings = [  # of each shard, by number; None if it is not read
            [name if name in self._decoders else None for name in shard.endings]
            for shard in self._index.shards
        ]

    def _check_complete(self) -> None:
        """Refuses samples that lack a requested column."""
        for name in self._chosen:
            if name == KEY or name in self._fill:
                continue
            for number, shard in enumerate(self._index.shards):
                count = int(self._index.samples.counts[number])
                lacking = count - shard.endings.get(name, 0)
                if lacking:
                    raise FileError(
                        f"{self._files.paths[number]}: {lacking} of {count} samples have no "
                        f"{name!r}. Give a value for them with fill={{{name!r}: ...}}, or leave "
                        "`columns` out, and they have fewer leaves."
                    )

    def label(self) -> str:
        return f"open(webdataset: {', '.join(self._chosen)})"

    def where(self, index: int) -> str:
        shard, _ = self._index.samples.locate(index)
        (key,) = self._index.keys_of(np.array([index]), np.array([shard]))
        return f"{self._files.paths[shard]}, sample {key!r}"

    def records(self, indices: Indices) -> list[dict[str, object]]:
        if self._cold.is_needed:
            self._cold.before(indices)
        shards = self._index.samples.ends.searchsorted(indices, "right")
        keys = self._index.keys_of(indices, shards)
        members = self._index.of_samples(indices, shards)
        at, stops = _located(members, shards)
        runs = self._bytes.runs(at, stops)
        contents = in_places(len(at), ((one.places, one.pieces()) for one in runs))
        each = zip(members.endings.tolist(), contents, strict=True)
        return [
            self._record(shard, key, islice(each, count))
            for shard, key, count in zip(
                shards.tolist(), keys, members.counts.tolist(), strict=True
            )
        ]

    def _spans(self, indices: Indices) -> Iterator[Span]:
        shards = self._index.samples.ends.searchsorted(indices, "right")
        members = self._index.of_samples(indices, shards)
        at, stops = _located(members, shards)
        assert at.parts is not None
        pairs = zip(at.parts.tolist(), members.endings.tolist(), strict=True)
        is_read = np.array([self._endings[shard][one] is not None for shard, one in pairs], bool)
        return self._bytes.spans(at.pick(np.flatnonzero(is_read)), stops[is_read])

    def _damaged(self, shard: int) -> FileError:
        """The error for a damaged index, which must not make up samples."""
        return FileError(
            f"{self._files.paths[shard]}: the index has samples outside the file. Remove the cache "
            "folder, so that it is made again."
        )

    def _record(
        self, shard: int, key: str, members: Iterator[tuple[int, object]]
    ) -> dict[str, object]:
        record: dict[str, object] = {KEY: key} if KEY in self._decoders else {}
        endings = self._endings[shard]
        for number, data in members:
            ending = endings[number]
            if ending is not None:
                assert isinstance(data, memoryview)
                record[ending] = self._value(ending, data.tobytes(), shard, key)
        for name, value in self._fill.items():
            record.setdefault(name, value)
        return {name: record[name] for name in self._chosen} if self._is_chosen else record

    def _value(self, ending: str, data: bytes, shard: int, key: str) -> object:
        decoder = self._decoders[ending]
        if decoder is None:
            return data
        try:
            return decoder(data)
        except (MissingPackageError, Warning):
            raise
        except Exception as error:  # decoders raise almost anything for damaged members
            raise BadRecordError(
                f"{self._files.paths[shard]}: {key}.{ending} cannot be decoded: {reason(error)}"
            ) from error


def _located(members: SampleMembers, shards: Indices) -> tuple[Located, Indices]:
    """Where members begin and end."""
    at = Located(np.repeat(shards, members.counts), members.starts)
    return at, members.starts + members.sizes


def _check_shards(files: FileSet, index: TarIndex) -> None:
    if not len(index.samples):
        raise FileError(
            f"{files.paths[0]} has no samples: members such as 0001.jpg and 0001.cls were looked "
            "for."
        )
    cut = [path for path, shard in zip(files.paths, index.shards, strict=True) if not shard.has_end]
    if cut:
        others = f" and {len(cut) - 1} more" if len(cut) > 1 else ""
        warn_user(
            f"{cut[0]}{others} ends without the mark that ends a tar file: it may be cut off. All "
            "members that are there are whole."
        )


def _refuse_pickles(endings: Sequence[str], path: str) -> None:
    for ending in endings:
        if is_pickle(ending):
            others = [one for one in endings if not is_pickle(one)]
            raise FileError(
                f"{path} has members .{ending}, which are pickles: reading one may run anything, "
                f"so loaderx never does. Choose other columns, columns={others!r}, or take their "
                "bytes with decode=False."
            )


def open_files(files: list[str], options: OpenOptions) -> Source:
    """The records of files of this format."""
    return WebDataset(
        files,
        columns=options.columns,
        decode=options.decode,
        fill=options.fill,
        cache=options.cache,
    )
