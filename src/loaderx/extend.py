"""For libraries that stand on loaderx: what `loaderx.compat` uses, and users need not know.

A source, a stage or an engine of your own needs `loaderx.sources`, `loaderx.stages` and
`loaderx.engines` alone.  Here is the rest: running an engine without a loader, seeds for generators
that are not NumPy's, and checks with loaderx's messages.  ``docs/extending.md`` has examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from loaderx.chain.functions import Function
from loaderx.chain.transforms import Fail, Transform, each, each_with, whole
from loaderx.dataset import Dataset
from loaderx.engines.base import Run, Session, TryAgainError, Work, cores
from loaderx.errors import check_int, warn_user
from loaderx.first_use import reachable
from loaderx.loader.run import TaskRun
from loaderx.loader.tasks.steps import StepTasks
from loaderx.memory import Layout
from loaderx.rng import EPOCH, ROW, Keys, fold_int, key_words
from loaderx.sources import Source
from loaderx.tree import Tree

if TYPE_CHECKING:
    from loaderx.engines.processes.pickling import PicklingError, TorchPickler

__all__ = [
    "Layout",
    "PicklingError",
    "Run",
    "TorchPickler",
    "TryAgainError",
    "check_int",
    "cores",
    "elements_in_order",
    "map_with_words",
    "open_array_records",
    "reachable",
    "seed_words",
    "warn_user",
]

_WORDS = 3  # random words of 64 bits for each element
_ENDLESS = 1 << 62


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    if name in ("PicklingError", "TorchPickler"):  # late: their module imports cloudpickle
        from loaderx.engines.processes import pickling

        return getattr(pickling, name)
    raise AttributeError(f"module 'loaderx.extend' has no attribute {name!r}")


def elements_in_order(session: Session, work: Work, steps: range) -> Run:
    """The elements of the tasks ``(step,)``, in order, made ahead by the workers of a session."""
    run = TaskRun(session, work, StepTasks(session, steps))
    session.begin(len(steps) if steps.stop < _ENDLESS else None)
    return run


def map_with_words(
    dataset: Dataset[Tree], f: Callable[[Any, Sequence[int]], Tree], *, seed: int, name: str
) -> Dataset[Tree]:
    """``f(element, words)``: as `Dataset.random_map`, for generators that are not NumPy's.

    The words are three random numbers of 64 bits, to seed them with.  They depend on the seed, the
    epoch and the record (of a batch, the first), never on a worker or on what was drawn before.
    ``name`` stands for the function in messages and in saved states.
    """
    return dataset._transform("map", _WordMap(Function(f, name)), name, seed=seed)


def seed_words(seed: int, epoch: int, number: int) -> list[int]:
    """Three random numbers of 64 bits for element ``number`` of an epoch."""
    key = fold_int(fold_int(seed, epoch, EPOCH), number, ROW)
    return _first_words(np.array([key], np.uint64))


def open_array_records(paths: Sequence[str]) -> Source:
    """The records of ArrayRecord files: ``{"data": bytes}``.  There may be none."""
    # Late: most programs have no such files.
    from loaderx.sources.cache.folder import CacheFolder
    from loaderx.sources.files.file_set import FileSet
    from loaderx.sources.formats.tf.array_record_files import ArrayRecordFiles
    from loaderx.sources.formats.tf.payloads import PayloadSource

    reader = ArrayRecordFiles(FileSet(list(paths)), CacheFolder(None))
    return PayloadSource(reader, "array_record")


class _WordMap(Transform):
    """``f(element, words)``"""

    function: Function

    needs = "keys"

    def on_records(self, records: list[Any], extra: Keys, fail: Fail) -> list[Any]:
        words = key_words(extra, _WORDS).tolist()
        return each(map(self.function.call, records, words), len(records), fail)

    def on_batch(self, batch: Tree, extra: Keys, fail: Fail) -> Tree:
        # The words of the first record: what a batch draws belongs to the batch.
        return whole(fail, self.function.call, batch, _first_words(extra))

    def on_each(self, records: Iterator[Any], extra: Keys, fail: Fail) -> Iterator[Any]:
        words = key_words(extra, _WORDS).tolist()
        return each_with(self.function.call, zip(records, words, strict=True), fail)


def _first_words(keys: Keys) -> list[int]:
    words: list[int] = key_words(keys[:1], _WORDS)[0].tolist()
    return words
