"""When an endless dataset is given up of which nothing comes through: one rule for all readers.

Without random stages below the filters, an epoch lets through what the one before did: one empty
epoch is enough to know.  Several lanes share the records, and in another order each has another
share, so they are given a few epochs more.  Where draws decide what comes through, the next epoch
may give something, and is waited for; but not for ever.
"""

from __future__ import annotations

from loaderx.errors import LoaderxError

RANDOM_EPOCHS = 1000
"""Empty epochs in a row after which a stream is given up whose filters see random numbers."""


class EmptyEpochs:
    """How many whole epochs in a row may give nothing."""

    def __init__(self, lanes: int, *, varies: bool) -> None:
        self.most = RANDOM_EPOCHS if varies else 1 if lanes == 1 else 4 * lanes

    def check(self, empty: int, where: str, what: str = "record") -> None:
        """Gives up after ``empty`` whole epochs, if those were too many."""
        if empty < self.most:
            return
        passes = "a whole pass" if empty == 1 else f"{empty:,} whole passes"
        batch = ", the batch is too large" if what == "batch" else ""
        raise LoaderxError(
            f"{where}: not one {what} came through in {passes} over an endless dataset. A filter "
            f"lets nothing through{batch}, or there is no data. Look at what the filter returns."
        )
