"""The nodes of a graph of datasets: their parents, and the seeds derived from the graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from importlib import import_module
from typing import ClassVar, TypeVar

import numpy as np

from loaderx.compat.grain import transforms
from loaderx.compat.grain.protocols import Element, Spec

T = TypeVar("T")
S = TypeVar("S")
D = TypeVar("D", bound="DatasetNode")


def make(node: str, *args: Element, **kwargs: Element) -> Element:
    """A node by its location, ``module.Class``.

    Nodes derive from the datasets whose methods create them, so their modules are imported late.
    """
    module, _, name = node.partition(".")
    return getattr(import_module(f"{__package__}.{module}"), name)(*args, **kwargs)


class NoStats:
    """Statistics that record nothing; users' datasets report to them, as they do in Grain."""

    _no_time = nullcontext()

    def record_self_time(self, offset_ns: float = 0, num_elements: int = 1) -> nullcontext[None]:
        """A context manager that does nothing."""
        return self._no_time

    def record_output_spec(self, element: T) -> T:
        """The element itself."""
        return element

    record_output_spec_for_batch = record_output_spec
    record_bytes_consumed = record_output_spec
    record_bytes_produced = record_output_spec

    def report(self) -> None:
        """There is nothing to report."""


class DatasetNode:
    """Base of `MapDataset` and `IterDataset`."""

    _MUTATES_ELEMENT_SPEC = True
    _shown: ClassVar[tuple[str, ...]] = ()  # attributes that `str` shows
    # Defaults for users' subclasses that do not call `super().__init__`.
    _parents: Sequence[DatasetNode] = ()
    _seed_rng_seed: int | None = None
    _stats = NoStats()

    def __init__(self, parents: DatasetNode | Sequence[DatasetNode] = ()) -> None:
        super().__init__()
        self._parents = (parents,) if isinstance(parents, DatasetNode) else tuple(parents)

    @functools.cached_property
    def _default_seed(self) -> int | None:
        """Derived from the seeds set below and their depths, in breadth-first order."""
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
        if self._MUTATES_ELEMENT_SPEC or not self._parents:
            raise NotImplementedError(
                f"{type(self).__name__} does not define the spec of its elements."
            )
        return self._parents[0]._element_spec

    def pipe(self, func: Callable[..., S], /, *args: object, **kwargs: object) -> S:
        """``func(self, *args, **kwargs)``, for use in a chain of methods."""
        return func(self, *args, **kwargs)

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, '_' + name)}" for name in self._shown)
        return f"{type(self).__name__}({shown})" if shown else type(self).__name__


def walk(ds: DatasetNode) -> Iterator[DatasetNode]:
    """A dataset and all datasets below it, from the top down."""
    yield ds
    for parent in ds._parents:
        yield from walk(parent)


def apply_transformations(ds: D, transformations: transforms.OneOrMore) -> D:
    """The dataset with one or more transformations applied in order."""
    several = transformations if isinstance(transformations, Sequence) else [transformations]
    for one in several:
        ds = _apply(ds, one)
    return ds


def _apply(ds: Element, one: transforms.Transformation) -> Element:
    match one:
        case transforms.Batch():
            return ds.batch(
                one.batch_size, drop_remainder=one.drop_remainder, batch_fn=one.batch_fn
            )
        case transforms.Map():
            return ds.map(one)
        case transforms.RandomMap():
            return ds.random_map(one)
        case transforms.MapWithIndex():
            return ds.map_with_index(one)
        case transforms.FlatMap():
            kind = "Map" if hasattr(ds, "to_iter_dataset") else "Iter"
            return make(f"function_nodes.FlatMap{kind}Dataset", ds, one)
        case transforms.Filter():
            return ds.filter(one)
    raise NotImplementedError(
        f"{one} is not a transformation of this module. Derive it from Map, RandomMap, "
        "MapWithIndex, Filter, FlatMap or Batch of loaderx.compat.grain.transforms, or use "
        "ds.map(f) for a plain function."
    )


def get_element_spec(ds: DatasetNode) -> Spec:
    """Shapes and dtypes of the elements of a dataset, without reading any."""
    return ds._element_spec
