"""The iterator of one epoch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeAlias

from loaderx import DataLoader as Runner
from loaderx import LoaderIterator, LoaderxError, RecordError, StateError
from loaderx.compat.torch.collate import Tree

State: TypeAlias = dict[str, Any]

# What messages of loaderx name, and what it is here.
_WORDS = {
    r"map\(fetch, seed=\d+\)": "the dataset or `collate_fn`",
    r"when the dataset was made": "when the loader was made",
    r"Dataset\.open": "loaderx.Dataset.open",  # not the Dataset of this package
    r"in \.map\(\)": "in the dataset or in `collate_fn`",
    r"`init` of engines\.Processes": "`worker_init_fn`",
    r"engine='(inline|threads)'": "num_workers=0",
    r"Pass strict=False .*": "Give this loader the arguments that the saved one had.",
}


class Epoch(Iterator[Tree]):
    """The batches of one epoch.  An exception in the dataset is raised unchanged."""

    def __init__(self, runner: Runner[Tree] | None, number: int, *, as_lists: bool) -> None:
        self.number = number
        self.is_done = runner is None  # there are no batches
        self._batches: LoaderIterator[Tree] | None = runner.epoch(number) if runner else None
        self._as_lists = as_lists

    def __next__(self) -> Tree:
        if self._batches is None:
            raise StopIteration
        try:
            batch = next(self._batches)
        except StopIteration:
            self.is_done = True
            raise
        except RecordError as error:
            raise _original(error) from None
        except LoaderxError as error:
            error.args = (_in_own_words(str(error)),)
            raise
        # Gathered rows of tuples are a tuple of arrays; torch's rule makes it a list.
        return list(batch) if self._as_lists and type(batch) is tuple else batch

    def __len__(self) -> int:
        """The number of batches that are left."""
        return 0 if self._batches is None else len(self._batches)

    def __bool__(self) -> bool:
        return True

    def get_state(self) -> State | None:
        """The position in the epoch."""
        return None if self._batches is None else self._batches.get_state()

    def set_state(self, state: State) -> None:
        """Continues in the epoch where a state was taken."""
        if self._batches is not None:
            try:
                self._batches.set_state(state)
            except StateError as error:
                error.args = (_in_own_words(str(error)),)
                raise

    def close(self) -> None:
        """Stops the work in the background; ``next`` starts it again."""
        if self._batches is not None:
            self._batches.close()


def _original(error: RecordError) -> BaseException:
    """The exception of the user's code, with a note that names the batch."""
    cause = error.__cause__
    # A StopIteration would end the user's loop without an error.
    if cause is None or isinstance(cause, StopIteration):
        error.detail = _in_own_words(error.detail)
        return error
    cause.add_note(f"loaderx: {_in_own_words(str(error))}")
    return cause


def _in_own_words(message: str) -> str:
    """A message with advice for this class, which has no `engine`."""
    for theirs, own in _WORDS.items():
        message = re.sub(theirs, own, message)
    return message
