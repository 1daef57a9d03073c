"""`ColumnarSource`: records whose leaves are read one after the other, each for many records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from loaderx.errors import ArgumentError
from loaderx.memory import Layout, Lend
from loaderx.sources.arrays import describe_spec
from loaderx.sources.file_source import FileSource
from loaderx.tree import Array, ArraySpec, Structure, Tree


class HasSpec(Protocol):
    """What reads one leaf of all records: a column, or a decoder."""

    @property
    def spec(self) -> ArraySpec | None: ...


class ColumnarSource(FileSource):
    """What tables and Examples share: spec, label and classes follow from the leaves."""

    def __init__(
        self,
        leaves: Sequence[HasSpec],
        structure: Structure,
        label: str,
        classes: Mapping[str, tuple[str, ...]] | None,
    ) -> None:
        if not leaves:
            raise ArgumentError("there are no columns to read.")
        self._structure, self._label, self._classes = structure, label, dict(classes or {})
        specs = [leaf.spec for leaf in leaves]
        self._gathers = all(spec is not None for spec in specs)
        self._specs = [spec for spec in specs if spec is not None] if self._gathers else []

    @property
    def classes(self) -> dict[str, tuple[str, ...]]:
        return self._classes

    @property
    def spec(self) -> Tree | None:
        return self._structure.build(self._specs) if self._gathers else None

    @property
    def gathers(self) -> bool:
        return self._gathers

    def label(self) -> str:
        if self._gathers:
            return f"open({self._label}: {describe_spec(self.spec)})"
        return f"open({self._label}: {', '.join(self._structure.paths())})"

    def _lent(self, count: int, lend: Lend) -> Sequence[Array]:
        """An array for each leaf of ``count`` records."""
        return lend(self._layout(count))

    def _layout(self, count: int) -> Layout:
        shapes = [((count, *spec.shape), np.dtype(spec.dtype)) for spec in self._specs]
        return Layout.of(*shapes)
