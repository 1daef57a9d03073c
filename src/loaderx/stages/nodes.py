"""All classes of nodes."""

from loaderx.stages.batch import Batched
from loaderx.stages.bucket import Bucketed
from loaderx.stages.concatenate import Concatenated
from loaderx.stages.filter import Filtered
from loaderx.stages.flat_map import FlatMapped
from loaderx.stages.inputs import FromIterable, FromSource
from loaderx.stages.map import Transformed
from loaderx.stages.mix import Mixed
from loaderx.stages.on_error import Guarded, Skipping
from loaderx.stages.pack import PackedRecords
from loaderx.stages.repeat import Repeated
from loaderx.stages.sample import Sampled
from loaderx.stages.seed import Seeded
from loaderx.stages.select import Part, Picked, Sliced
from loaderx.stages.shuffle import Shuffled, WindowShuffled
from loaderx.stages.unbatch import Unbatched
from loaderx.stages.window_map import WindowMapped
from loaderx.stages.zip import Zipped

__all__ = [
    "Batched",
    "Bucketed",
    "Concatenated",
    "Filtered",
    "FlatMapped",
    "FromIterable",
    "FromSource",
    "Guarded",
    "Mixed",
    "PackedRecords",
    "Part",
    "Picked",
    "Repeated",
    "Sampled",
    "Seeded",
    "Shuffled",
    "Skipping",
    "Sliced",
    "Transformed",
    "Unbatched",
    "WindowMapped",
    "WindowShuffled",
    "Zipped",
]
