"""What all stages of images are: a function of one image, for records, batches and by itself."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from loaderx.errors import ChainError
from loaderx.frozen import Frozen
from loaderx.image.leaves import Changed, Leaves
from loaderx.memory import empty
from loaderx.rng import BatchGenerator
from loaderx.tree import Array, Tree

_ALONE = Leaves(None)  # an image by itself


class Stage(Frozen):
    """The base of both kinds."""

    __name__: str  # as a chain shows it
    arguments: str
    leaves: Leaves
    change: Callable[..., Changed]  # of the image, and of a generator

    def __repr__(self) -> str:
        return f"{self.__name__}({self.arguments})"


class FixedStage(Stage):
    """A stage without draws, for `Dataset.map`."""

    def map(self, record: Tree) -> Tree:
        """The record with its image changed, and what follows it."""
        return self.leaves.changed(record, self.change)

    def __call__(self, image: Tree) -> Tree:
        """The image changed; of a record, all leaves that follow it, too."""
        return self.map(image) if isinstance(image, dict) else self.change(image)[0]


class RandomStage(Stage):
    """A stage with draws, for `Dataset.random_map`."""

    def random_map(self, record: Tree, rng: np.random.Generator | BatchGenerator) -> Tree:
        """The record changed; or the batch, where each record has the draws of its own."""
        if isinstance(rng, BatchGenerator):
            return self._batch(record, rng)
        return self.leaves.changed(record, lambda value: self.change(value, rng))

    def __call__(self, image: Tree, rng: np.random.Generator | BatchGenerator) -> Tree:
        """The image changed; of a record, all leaves that follow it, too."""
        stage = self if isinstance(image, dict) else self.replace(leaves=_ALONE)
        return stage.random_map(image, rng)

    def _batch(self, batch: Tree, rng: BatchGenerator) -> Tree:
        if self.leaves.cuts and self.leaves.boxes:
            raise ChainError(f"{self!r} works on records: put it before .batch(...).")
        if self.leaves.key is None:
            return self.replace(leaves=Leaves("image"))._batch({"image": batch}, rng)["image"]
        columns = {name: self.leaves.leaf(batch, name) for name in self.leaves.names}
        made: dict[str, Array] = {}
        for index, own in enumerate(rng.generators()):
            row = {name: column[index] for name, column in columns.items()}
            for name, array in self.random_map(row, own).items():
                if not index:
                    made[name] = empty((len(rng), *array.shape), array.dtype)
                made[name][index] = array
        return {**batch, **made}
