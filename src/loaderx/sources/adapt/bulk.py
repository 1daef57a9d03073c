"""Bulk reads that fail where single reads do not.

If a record cannot be read alone either, the data is at fault, and that record's error is raised.
If all of them can be read alone, only the bulk read is at fault (it may not take repeated indices).
Then the records that were read alone are used, and a warning says so, once for each source.

The next batch tries the bulk read again.  If one failure disabled it for good, a batch would depend
on what was read before it, and on the worker that read it.
"""

from __future__ import annotations

import contextlib

from loaderx.errors import ArgumentError, LoaderxError, LoaderxWarning, one_line, warn_user
from loaderx.tree import Tree, flatten, spec_of

INDEXING = "indexing"
"""A bulk read by ``obj[...]`` rather than by a method."""


class BulkReads:
    """The bulk read of a source: whether it has failed, and the spec of its records."""

    def __init__(self, owner: str, method: str) -> None:
        self._owner, self.method = owner, method
        self.has_failed = False
        self._together: Tree | None = None  # specs of a record
        self._alone: Tree | None = None
        self.is_known = False  # the spec of a bulk-read record is known

    def worked(self, record: Tree) -> None:
        """Remembers the spec of a record of the bulk read."""
        self._together = _spec(record)
        self._compare()
        self.is_known = True

    def failed(self, error: Exception, records: list[Tree]) -> None:
        """Warns, once, that the bulk read failed on records that were then read one by one."""
        if self.has_failed:
            return
        advice = "" if self.method == INDEXING else f" Correct {self.method}, or remove it."
        _warn(
            f"{self.method} of {self._owner} failed on {len(records)} records that can be read "
            f"one by one: {one_line(error)}. They were read one by one, which is slower, and so "
            f"will be all others on which it fails.{advice}",
            error,
        )
        self._alone = _spec(records[0])
        self._compare()
        self.has_failed = True  # only now: if warnings are errors, this one must come again

    def _compare(self) -> None:
        if self._together is None or self._alone is None:
            return
        together, structure = flatten(self._together)
        alone, other = flatten(self._alone)
        if structure is not other:
            _warn(
                f"{self._owner} gives the leaves {structure.paths()} by {self.method}, and "
                f"{other.paths()} where records are read one by one."
            )
            return
        for path, one, two in zip(structure.paths(), together, alone, strict=True):
            # Records need not have equal shapes unless they are stacked.
            is_like = len(one.shape) == len(two.shape) and self.method != "gather"
            if one.dtype != two.dtype or not (is_like or one.shape == two.shape):
                leaf = f'leaf "{path}" of {self._owner}' if path else f"a record of {self._owner}"
                _warn(
                    f"{leaf} is {one!r} by {self.method}, and {two!r} where records are read one "
                    "by one. Batches have one or the other: make both give the same."
                )
                return


def _spec(record: Tree) -> Tree | None:
    with contextlib.suppress(LoaderxError):  # a leaf cannot become an array
        return spec_of(record)
    return None


def _warn(text: str, error: Exception | None = None) -> None:
    try:
        warn_user(text)
    except LoaderxWarning as raised:  # the user made warnings errors: not an error of a record
        raise ArgumentError(text) from error or raised
