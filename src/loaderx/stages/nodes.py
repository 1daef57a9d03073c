"""All classes of nodes.

Those that few chains have are imported when they are first used: together they take as long to
import as the rest of `stages`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from loaderx.stages.batch import Batched
from loaderx.stages.inputs import FromIterable, FromSource
from loaderx.stages.map import Transformed
from loaderx.stages.repeat import Repeated
from loaderx.stages.seed import Seeded
from loaderx.stages.select import Part, Picked, Sliced
from loaderx.stages.shuffle import Shuffled, WindowShuffled

if TYPE_CHECKING:
    from loaderx.stages.block_shuffle import BlockShuffled
    from loaderx.stages.bucket import Bucketed
    from loaderx.stages.cache import Cached
    from loaderx.stages.concatenate import Concatenated
    from loaderx.stages.filter import Filtered
    from loaderx.stages.flat_map import FlatMapped
    from loaderx.stages.mix import Mixed
    from loaderx.stages.narrow import Narrowed
    from loaderx.stages.on_error import Guarded, Skipping
    from loaderx.stages.pack import PackedRecords
    from loaderx.stages.sample import Sampled
    from loaderx.stages.skip_steps import StepsSkipped
    from loaderx.stages.unbatch import Unbatched
    from loaderx.stages.window import Windowed
    from loaderx.stages.window_map import WindowMapped
    from loaderx.stages.without import Without
    from loaderx.stages.zip import Zipped

__all__ = [
    "Batched",
    "BlockShuffled",
    "Bucketed",
    "Cached",
    "Concatenated",
    "Filtered",
    "FlatMapped",
    "FromIterable",
    "FromSource",
    "Guarded",
    "Mixed",
    "Narrowed",
    "PackedRecords",
    "Part",
    "Picked",
    "Repeated",
    "Sampled",
    "Seeded",
    "Shuffled",
    "Skipping",
    "Sliced",
    "StepsSkipped",
    "Transformed",
    "Unbatched",
    "WindowMapped",
    "WindowShuffled",
    "Windowed",
    "Without",
    "Zipped",
]

_LATE = {
    "BlockShuffled": "block_shuffle",
    "Bucketed": "bucket",
    "Cached": "cache",
    "Concatenated": "concatenate",
    "Filtered": "filter",
    "FlatMapped": "flat_map",
    "Guarded": "on_error",
    "Mixed": "mix",
    "Narrowed": "narrow",
    "PackedRecords": "pack",
    "Sampled": "sample",
    "Skipping": "on_error",
    "StepsSkipped": "skip_steps",
    "Unbatched": "unbatch",
    "WindowMapped": "window_map",
    "Windowed": "window",
    "Without": "without",
    "Zipped": "zip",
}


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module 'loaderx.stages.nodes' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"loaderx.stages.{_LATE[name]}"), name)
    globals()[name] = found
    return found
