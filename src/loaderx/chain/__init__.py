"""The frozen description of a dataset: a chain of nodes, one per stage."""

from loaderx.chain.batches import Batched, Unbatched
from loaderx.chain.inputs import FromIterable, FromSource
from loaderx.chain.joined import Concatenated, Joined, Mixed, Zipped
from loaderx.chain.moves import Part, Picked, Repeated, Shuffled, Sliced, WindowShuffled
from loaderx.chain.rules import Guarded, Seeded
from loaderx.chain.streams import Bucketed, Filtered, FlatMapped, PackedRecords, Skipping
from loaderx.chain.transforms import Transformed

__all__ = [
    "Batched",
    "Bucketed",
    "Concatenated",
    "Filtered",
    "FlatMapped",
    "FromIterable",
    "FromSource",
    "Guarded",
    "Joined",
    "Mixed",
    "PackedRecords",
    "Part",
    "Picked",
    "Repeated",
    "Seeded",
    "Shuffled",
    "Skipping",
    "Sliced",
    "Transformed",
    "Unbatched",
    "WindowShuffled",
    "Zipped",
]
