"""A `loaderx.Dataset` as a Grain dataset, for programs that expect one."""

from __future__ import annotations

from typing import TypeVar

from loaderx import ArgumentTypeError, DataLoader, Dataset, LoaderIterator
from loaderx.compat.grain.iter_dataset import IterDataset
from loaderx.compat.grain.iterator import DatasetIterator
from loaderx.compat.grain.map_dataset import MapNode
from loaderx.compat.grain.protocols import Element, ShapeDtypeStruct, Spec, State
from loaderx.compat.grain.trees import map_structure

T = TypeVar("T")


def _checked(ds: Dataset[T]) -> Dataset[T]:
    if not isinstance(ds, Dataset):
        raise ArgumentTypeError(
            f"`from_loaderx` takes a loaderx.Dataset, got {type(ds).__name__}. For a source write "
            "MapDataset.source(obj)."
        )
    return ds


def _spec(ds: Dataset[T]) -> Spec:
    return map_structure(lambda spec: ShapeDtypeStruct(spec.shape, spec.dtype), ds.element_spec)


class LoaderxMapDataset(MapNode[T]):
    """The elements of a dataset by index; beyond the length those of ``ds.repeat()``."""

    def __init__(self, ds: Dataset[T]) -> None:
        super().__init__()
        self._dataset = _checked(ds)
        try:
            self._length = len(ds)
        except TypeError as error:
            raise ArgumentTypeError(
                "a stream, or an endless dataset, has no elements by index: write "
                "IterDataset.from_loaderx(ds)."
            ) from error
        self._epochs = ds.repeat()

    def _item(self, index: int) -> Element:
        return self._dataset[index] if 0 <= index < self._length else self._epochs[index]

    @property
    def _element_spec(self) -> Spec:
        return _spec(self._dataset)


class LoaderxIterDataset(IterDataset[T]):
    """The elements of a dataset in order, from a `loaderx.DataLoader`."""

    def __init__(self, ds: Dataset[T]) -> None:
        super().__init__()
        self._dataset = _checked(ds)

    def __iter__(self) -> DatasetIterator[T]:
        # A new loader for each iterator, since a loader that is iterated again warns.
        return LoaderxDatasetIterator(iter(DataLoader(self._dataset)))

    @property
    def _element_spec(self) -> Spec:
        return _spec(self._dataset)


class LoaderxDatasetIterator(DatasetIterator[T]):
    """A `LoaderIterator` with the interface of Grain's iterators; its state is loaderx's."""

    def __init__(self, iterator: LoaderIterator[T]) -> None:
        super().__init__()
        self._iterator = iterator

    def __next__(self) -> T:
        self._assert_not_closed()
        return next(self._iterator)

    def get_state(self) -> State:
        """The state of the loader's iterator."""
        return dict(self._iterator.get_state())

    def set_state(self, state: State) -> None:
        """Continues where the state was taken."""
        self._iterator.set_state(state)

    def _get_next_index(self) -> int:
        return self._iterator.step

    def _set_next_index(self, index: int) -> None:
        self._iterator.seek(index)

    def start_prefetch(self) -> None:
        """Begins to read ahead."""
        self._iterator.start()

    def close(self) -> None:
        """Ends all work in the background; after that ``next`` is an error."""
        if not self._closed:
            super().close()
            self._iterator.close()
