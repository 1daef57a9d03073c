"""What a packing dataset was asked for, checked once and made ready for its iterators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loaderx.compat.grain.packing_bins import Bins, Lengths, PackedBatch
from loaderx.compat.grain.protocols import Element
from loaderx.errors import ArgumentError, StackError

Path = tuple[str, ...]
Features = Mapping[str, Element]
MakeBins = Callable[[Lengths, int], Bins]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingPlan:
    """The features to pack, by path, and the rules of their bins."""

    make_bins: MakeBins
    count: int
    paths: tuple[Path, ...]
    names: tuple[str, ...] | None  # instead of paths, where no feature is inside another
    lengths: Lengths
    paddings: tuple[Element, ...]
    alignments: Lengths
    meta: frozenset[str]
    lists: tuple[str, ...]  # features that are not packed but collected, record by record
    most: int | None
    seed: int
    shuffle: bool
    group_by: str | None

    def values(self, element: Features) -> list[Element]:
        """The values of a record, feature by feature."""
        try:
            if self.names is not None:
                return [element[name] for name in self.names]
            return [_at(element, path) for path in self.paths]
        except (KeyError, TypeError, IndexError) as error:
            wanted = ", ".join(".".join(path) for path in self.paths)
            raise StackError(
                f"cannot pack: a record has {_names(element)}, and `length_struct` asks for "
                f"{wanted}. Add what is missing in .map(), or remove it from `length_struct`."
            ) from error

    def measured(self, values: Sequence[Element]) -> Lengths:
        """The number of cells that each value takes."""
        lengths = tuple(map(_cells, values))
        for length, most in zip(lengths, self.lengths, strict=True):
            if length > most:
                raise StackError(self._too_long(lengths))
        return lengths

    def _too_long(self, lengths: Lengths) -> str:
        found = [
            f"{'.'.join(path)} has {n} of {most}"
            for path, n, most in zip(self.paths, lengths, self.lengths, strict=True)
            if n > most
        ]
        return (
            f"cannot pack a record that is longer than a bin: {', '.join(found)}. Cut records "
            "before they are packed, for instance in .map()."
        )

    def empty(self, values: Sequence[Element]) -> PackedBatch:
        """Empty bins for records like this one."""
        return PackedBatch(
            values,
            bins=self.make_bins(self.lengths, self.count),
            count=self.count,
            lengths=self.lengths,
            paddings=self.paddings,
            alignments=self.alignments,
            most=self.most,
        )


def packing_plan(
    make_bins: MakeBins,
    *,
    length_struct: Features,
    num_packing_bins: int,
    seed: int,
    shuffle_bins: bool,
    shuffle_bins_group_by_feature: str | None,
    meta_features: Sequence[str],
    pack_alignment_struct: Features | None,
    padding_struct: Features | None,
    max_sequences_per_bin: int | None,
) -> PackingPlan:
    if max_sequences_per_bin is not None and max_sequences_per_bin <= 0:
        raise ArgumentError(
            f"`max_sequences_per_bin` must be at least 1, or None; got {max_sequences_per_bin}."
        )
    if not isinstance(length_struct, Mapping):
        raise ArgumentError(
            "`length_struct` must be a dict of lengths by the name of the feature, got "
            f"{length_struct!r}."
        )
    paths = tuple(_paths(length_struct))
    return PackingPlan(
        make_bins=make_bins,
        count=num_packing_bins,
        paths=paths,
        names=tuple(path[0] for path in paths) if max(map(len, paths)) == 1 else None,
        lengths=tuple(int(_at(length_struct, path)) for path in paths),
        paddings=_matching(paths, padding_struct, None),
        alignments=tuple(int(n) for n in _matching(paths, pack_alignment_struct, 1)),
        meta=frozenset(meta_features),
        lists=tuple(name for name in meta_features if name not in length_struct),
        most=max_sequences_per_bin,
        seed=seed,
        shuffle=shuffle_bins,
        group_by=shuffle_bins_group_by_feature,
    )


def _cells(value: Element) -> int:
    if type(value) is np.ndarray:
        return value.shape[0] if value.ndim else 1
    return 1 if np.ndim(value) == 0 else len(value)


def _paths(tree: Features, above: Path = ()) -> Iterator[Path]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _paths(value, (*above, name))
        else:
            yield (*above, name)


def _at(tree: Features, path: Path) -> Element:
    value: Element = tree
    for name in path:
        value = value[name]
    return value


def _matching(
    paths: Sequence[Path], tree: Features | None, default: Element
) -> tuple[Element, ...]:
    if tree is None:
        return (default,) * len(paths)
    return tuple(_at(tree, path) for path in paths)


def _names(element: Element) -> str:
    if isinstance(element, Mapping):
        return ", ".join(map(str, element))
    return f"no names (it is a {type(element).__name__})"
