"""Names of features that hold metadata of a record."""

DATASET_INDEX = "_dataset_index"
EPOCH = "_epoch"
INDEX = "_index"
RECORD = "_record"
RECORD_KEY = "_record_key"
SEED = "_seed"

META_FEATURES = frozenset([INDEX, RECORD_KEY, DATASET_INDEX, EPOCH, SEED, RECORD])

__all__ = ["DATASET_INDEX", "EPOCH", "INDEX", "META_FEATURES", "RECORD", "RECORD_KEY", "SEED"]


def __dir__() -> list[str]:
    return __all__
