"""Nodes over several `IterDataset`s: mix and zip, and the seed of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from loaderx.compat.grain.iter_dataset import IterDataset
from loaderx.compat.grain.iterator import DatasetIterator
from loaderx.compat.grain.proportions import choose, whole_proportions
from loaderx.compat.grain.protocols import Element, Spec, State
from loaderx.compat.grain.registry import node

T = TypeVar("T")
Several = Sequence[T] | Mapping[str, T]


@node("iter.seed")
class WithSeedIterDataset(IterDataset[T]):
    """Holds a seed for the stages above."""

    def __init__(self, parent: IterDataset[T], *, seed: int) -> None:
        super().__init__(parent)
        self._seed_rng_seed = seed

    def __iter__(self) -> DatasetIterator[T]:
        return self._parent.__iter__()

    @property
    def _element_spec(self) -> Spec:
        return self._parent._element_spec

    def __str__(self) -> str:
        return "WithOptionsIterDataset"


def _values(several: Several[T]) -> list[T]:
    """The values; those of a mapping by key in order, as in Grain."""
    if isinstance(several, Mapping):
        return [several[key] for key in sorted(several)]
    return list(several)


@node("iter.mix")
class MixedIterDataset(IterDataset[T]):
    """Elements of several datasets in proportion, until the first of them ends."""

    def __init__(
        self,
        parents: Several[IterDataset[T]],
        proportions: Several[float] | None = None,
    ) -> None:
        super().__init__(_values(parents))
        self._keys = sorted(parents) if isinstance(parents, Mapping) else None
        if proportions is not None and isinstance(proportions, Mapping) != bool(self._keys):
            raise ValueError("datasets and weights must both be mappings, or both be sequences.")
        if isinstance(proportions, Mapping) and sorted(proportions) != self._keys:
            raise ValueError(
                f"the weights have the keys {sorted(proportions)}, the datasets {self._keys}."
            )
        weights = None if proportions is None else _values(proportions)
        self._proportions = whole_proportions(weights, len(self._parents))

    def __iter__(self) -> DatasetIterator[T]:
        parents = [parent.__iter__() for parent in self.parents]
        return _MixIterator(parents, self._proportions, self._keys)

    @property
    def _element_spec(self) -> Spec:
        return self.parents[0]._element_spec

    def __str__(self) -> str:
        return f"MixedIterDataset([{len(self._parents)} parents], proportions={self._proportions})"


class _MixIterator(DatasetIterator[T]):
    def __init__(
        self,
        parents: Sequence[DatasetIterator[T]],
        proportions: tuple[int, ...],
        keys: list[str] | None,
    ) -> None:
        super().__init__(parents)
        self._proportions = proportions
        self._keys = keys
        self._index = 0
        self._stop = False

    def __next__(self) -> T:
        if self._stop:
            raise StopIteration
        number, _ = choose(self._index, self._proportions)
        self._index += 1
        try:
            return next(self._parents[number])  # type: ignore[no-any-return]
        except Exception as error:
            self._stop = True
            error.add_note(f"In dataset {number} of {self}.")
            raise

    def get_state(self) -> State:
        """The states of the parents, by name if they have names."""
        states = [parent.get_state() for parent in self._parents]
        by_name = states if self._keys is None else dict(zip(self._keys, states, strict=True))
        return {"parents": by_name, "index": self._index, "stop": self._stop}

    def set_state(self, state: State) -> None:
        """Goes on where the state was taken; a parent that it does not name starts over."""
        states = state["parents"]
        if self._keys is not None:
            states = [states.get(key) for key in self._keys]
        for parent, one in zip(self._parents, states, strict=False):
            if one is not None:
                parent.set_state(one)
        self._index, self._stop = state["index"], state["stop"]

    def __str__(self) -> str:
        return f"MixedDatasetIterator([{len(self._parents)} parents])"


class ZipIterDataset(IterDataset[T]):
    """Tuples of the elements of several datasets, which must end together if ``strict``."""

    def __init__(self, parents: Sequence[IterDataset[Element]], *, strict: bool = True) -> None:
        super().__init__(parents)
        if not self._parents:
            raise ValueError("zip needs at least one dataset.")
        self._strict = strict

    def __iter__(self) -> DatasetIterator[T]:
        parents = [parent.__iter__() for parent in self.parents]
        return _ZipIterator(parents, self._strict)

    @property
    def _element_spec(self) -> Spec:
        return tuple(parent._element_spec for parent in self.parents)

    def __str__(self) -> str:
        return f"ZipIterDataset(parents={self._parents}, strict={self._strict})"


class _ZipIterator(DatasetIterator[T]):
    def __init__(self, parents: Sequence[DatasetIterator[Element]], strict: bool) -> None:
        super().__init__(parents)
        self._strict = strict

    def __next__(self) -> Element:
        found = []
        for number, parent in enumerate(self._parents):
            try:
                found.append(next(parent))
            except StopIteration:
                if self._strict:
                    self._check_ends(number)
                raise
        return tuple(found)

    def _check_ends(self, number: int) -> None:
        """One parent has ended: all must."""
        before = "argument 1" if number == 1 else f"arguments 1-{number}"
        if number:
            raise ValueError(f"ZipIterDataset argument {number + 1} is shorter than {before}")
        for other, parent in enumerate(self._parents[1:], 1):
            try:
                next(parent)
            except StopIteration:
                continue
            before = "argument 1" if other == 1 else f"arguments 1-{other}"
            raise ValueError(f"ZipIterDataset argument {other + 1} is longer than {before}")

    def get_state(self) -> State:
        """The states of the parents."""
        return {"parents": [parent.get_state() for parent in self._parents]}

    def set_state(self, state: State) -> None:
        """Goes on where the state was taken."""
        for parent, one in zip(self._parents, state["parents"], strict=True):
            parent.set_state(one)

    def __str__(self) -> str:
        return f"ZipDatasetIterator([{len(self._parents)} parents])"
