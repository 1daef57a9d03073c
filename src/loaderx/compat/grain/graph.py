"""A node of the graph of datasets: what it is made from, and the seeds that follow from that."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

import numpy as np

from loaderx.compat.grain.no_stats import NoStats
from loaderx.compat.grain.protocols import Spec
from loaderx.compat.grain.registry import make
from loaderx.compat.grain.transforms import (
    Batch,
    Filter,
    FlatMap,
    Map,
    MapWithIndex,
    RandomMap,
    Transformation,
    Transformations,
)

P = ParamSpec("P")
S = TypeVar("S")
D = TypeVar("D", bound="DatasetNode")


class DatasetNode:
    """Base of `MapDataset` and `IterDataset`."""

    _MUTATES_ELEMENT_SPEC = True
    # For subclasses of users' own that do not call `super().__init__`.
    _parents: Sequence[DatasetNode] = ()
    _seed_rng_seed: int | None = None
    _stats = NoStats()

    def __init__(self, parents: Sequence[DatasetNode]) -> None:
        super().__init__()
        self._parents = parents

    @functools.cached_property
    def _default_seed(self) -> int | None:
        """From the seeds set below, each with its depth in the graph, in breadth-first order."""
        found: list[int] = []
        to_visit: list[tuple[DatasetNode, int]] = [(self, 0)]
        while to_visit:
            node, depth = to_visit.pop(0)
            seed = getattr(node, "_seed_rng_seed", None)
            if seed is not None:
                found += (seed, depth)
            else:
                to_visit += [(parent, depth + 1) for parent in node._parents]
        if not found:
            return None
        return int(np.random.SeedSequence(found).generate_state(1, dtype=np.uint32)[0])

    @property
    def _element_spec(self) -> Spec:
        """Shapes and dtypes of an element, without reading any."""
        raise NotImplementedError(f"{type(self).__name__} does not say the spec of its elements.")

    def pipe(self, func: Callable[..., S], /, *args: object, **kwargs: object) -> S:
        """``func(self, *args, **kwargs)``, so that it can stand in a chain of methods."""
        return func(self, *args, **kwargs)


def apply_transformations(ds: D, transformations: Transformation | Transformations) -> D:
    """The dataset with one or more transformations applied in order."""
    several = transformations if isinstance(transformations, Sequence) else [transformations]
    for one in several:
        ds = _apply(ds, one)
    return ds


def _apply(ds: D, one: Transformation) -> D:
    kind = "map" if hasattr(ds, "to_iter_dataset") else "iter"
    match one:
        case Batch():
            made = make(
                f"{kind}.batch", ds, one.batch_size,
                drop_remainder=one.drop_remainder, batch_fn=one.batch_fn,
            )  # fmt: skip
        case Map():
            made = make(f"{kind}.map", ds, one)
        case RandomMap():
            made = make(f"{kind}.random_map", ds, one)
        case MapWithIndex():
            made = make(f"{kind}.map_with_index", ds, one)
        case FlatMap():
            made = make(f"{kind}.flat_map", ds, one)
        case Filter():
            made = make(f"{kind}.filter", ds, one)
        case _:
            raise NotImplementedError(
                f"{one} is not a transformation of this module. Derive it from Map, RandomMap, "
                "MapWithIndex, Filter, FlatMap or Batch of loaderx.compat.grain.transforms, or use "
                "ds.map(f) for a plain function."
            )
    return made  # type: ignore[no-any-return]


def get_element_spec(ds: DatasetNode) -> Spec:
    """Shapes and dtypes of the elements of a dataset, without reading any."""
    return ds._element_spec
