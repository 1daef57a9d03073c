"""When to give up on an endless dataset that yields nothing: one rule for all readers.

Without random stages below the filters, every epoch lets through the same records: one empty epoch
is enough to know.  Several lanes share the records, and a new order changes the share of each, so
they get a few more epochs.  Where draws decide, the next epoch may give something, so many epochs
are tried, but not endlessly many.
"""

from __future__ import annotations

from loaderx.errors import LoaderxError

RANDOM_EPOCHS = 1000
"""Empty epochs in a row before giving up, where filters depend on random numbers."""


class EmptyEpochs:
    """How many whole epochs in a row may give nothing."""

    def __init__(self, lanes: int, *, varies: bool) -> None:
        self.most = RANDOM_EPOCHS if varies else 1 if lanes == 1 else 4 * lanes

    def check(self, empty: int, where: str, what: str = "record") -> None:
        """Raises if ``empty`` whole epochs are too many."""
        if empty < self.most:
            return
        epochs = "a whole epoch" if empty == 1 else f"{empty:,} whole epochs"
        batch = ", the batch is too large" if what == "batch" else ""
        raise LoaderxError(
            f"{where}: not one {what} came through in {epochs} of an endless dataset. A filter "
            f"lets nothing through{batch}, or there is no data. Look at what the filter returns."
        )
