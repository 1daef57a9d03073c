"""Tells the user when nearly all elements are left out."""

from __future__ import annotations

from time import monotonic

from loaderx.compat.grain.iterator import IteratorContext
from loaderx.compat.grain.log import log

_WINDOW = 1000
_QUIET_S = 60.0  # between two warnings

last_warning = float("-inf")


class FilterCheck:
    """Counts elements in windows of a thousand."""

    def __init__(self, name: str, context: IteratorContext) -> None:
        self._name = name
        self._warn, self._raise = context.dataset_options.filter_limits()
        self._passed = self._skipped = 0

    def count(self, passed: int, skipped: int) -> None:
        """So many more elements; raises or warns at the end of a window."""
        self._passed += passed
        self._skipped += skipped
        seen = self._passed + self._skipped
        if seen < _WINDOW:
            return
        share = self._skipped / seen
        if share >= self._raise:
            raise ValueError(self._text(share, seen, "filter_raise_threshold_ratio"))
        if share >= self._warn:
            _log(self._text(share, seen, "filter_warn_threshold_ratio"))
        self._passed = self._skipped = 0

    def _text(self, share: float, seen: int, option: str) -> str:
        return (
            f"{self._name} has left out {share * 100:.2f} % of the last {seen} elements. If that "
            f"is meant, filter the data beforehand, or switch this check off: `DatasetOptions("
            f"{option}=None)` in `WithOptionsIterDataset`."
        )


def _log(text: str) -> None:
    global last_warning
    if monotonic() - last_warning >= _QUIET_S:
        last_warning = monotonic()
        log().warning(text)
