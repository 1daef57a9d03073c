"""Several datasets in turn, with a limited number of them open at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from loaderx.compat.grain.iter_dataset import IterDataset
from loaderx.compat.grain.iterator import DatasetIterator
from loaderx.compat.grain.map_dataset import MapDataset
from loaderx.compat.grain.protocols import Element, Spec, State
from loaderx.compat.grain.thread_prefetch import ThreadPrefetchIterDataset

T = TypeVar("T")


class InterleaveIterDataset(IterDataset[T]):
    """One element of each of ``cycle_length`` datasets in turn; the next replaces one that ends.

    ``num_make_iter_threads`` and ``make_iter_buffer_size`` are accepted and have no effect.
    """

    _shown = ("cycle_length",)

    def __init__(
        self,
        datasets: Sequence[IterDataset[T] | MapDataset[T]],
        *,
        cycle_length: int,
        num_make_iter_threads: int = 1,
        make_iter_buffer_size: int = 1,
        iter_buffer_size: int = 1,
    ) -> None:
        super().__init__()
        self._datasets = datasets
        self._cycle_length = cycle_length
        self._iter_buffer_size = iter_buffer_size

    def __iter__(self) -> DatasetIterator[T]:
        return InterleaveDatasetIterator(
            self._datasets, self._cycle_length, iter_buffer_size=self._iter_buffer_size
        )

    @property
    def _element_spec(self) -> Spec:
        return self._datasets[0]._element_spec


class _Place:
    """A place in the cycle: its dataset, and the iterator or, after its end, the last state."""

    __slots__ = ("ended", "index", "iterator")

    def __init__(self, index: int) -> None:
        self.index = index
        self.iterator: DatasetIterator[Element] | None = None
        self.ended: State | None = None


class InterleaveDatasetIterator(DatasetIterator[T]):
    """Its state holds those of the datasets in the cycle."""

    def __init__(
        self,
        datasets: Sequence[IterDataset[T] | MapDataset[T]],
        cycle_length: int,
        iter_buffer_size: int = 1,
    ) -> None:
        super().__init__()
        self._datasets = datasets
        self._buffer_size = iter_buffer_size
        self._places = [_Place(number) for number in range(min(cycle_length, len(datasets)))]
        self._turn = 0
        self._next_dataset = 0
        self._later: dict[int, State] = {}  # states of datasets that are not open yet
        self._has_started = False

    def __next__(self) -> T:
        self._assert_not_closed()
        self._has_started = True
        while self._places:
            place = self._places[self._turn]
            if place.iterator is None and not self._fill(place):
                if all(other.iterator is None for other in self._places):
                    break
                self._pass_on()
                continue
            assert place.iterator is not None
            try:
                element = next(place.iterator)
            except StopIteration:
                place.ended, place.iterator = place.iterator.get_state(), None
                self._pass_on()
                continue
            self._pass_on()
            return element  # type: ignore[no-any-return]
        raise StopIteration

    def _pass_on(self) -> None:
        self._turn = (self._turn + 1) % len(self._places)

    def _fill(self, place: _Place) -> bool:
        """Puts the next dataset into a place; False if none is left."""
        number = self._next_dataset
        if number >= len(self._datasets):
            return False
        place.index, place.ended = number, None
        place.iterator = self._open(number)
        if self._has_started:
            place.iterator.start_prefetch()
        if number in self._later:
            place.iterator.set_state(self._later.pop(number))
        self._next_dataset += 1
        return True

    def _open(self, number: int) -> DatasetIterator[Element]:
        ds = self._datasets[number]
        if isinstance(ds, MapDataset):
            iterator = ds.__iter__()
        else:
            size = self._buffer_size
            iterator = ThreadPrefetchIterDataset(ds, prefetch_buffer_size=size).__iter__()
        options = self._ctx.dataset_options
        iterator._ctx.dataset_options = options.merge(iterator._ctx.dataset_options)
        return iterator

    def get_state(self) -> State:
        """The states of all places; empty places are filled first."""
        states: list[State | None] = [None] * len(self._places)
        for number, place in enumerate(self._places):
            if place.iterator is None and place.ended is None and not self._fill(place):
                break
            states[number] = place.ended if place.iterator is None else place.iterator.get_state()
        return {
            "next_index_in_cycle": self._turn,
            "next_index_in_datasets": self._next_dataset,
            "iterators_in_use_indices": [place.index for place in self._places],
            "iterators_in_use_states": states,
            "exhausted": [int(place.ended is not None) for place in self._places],
            "future_states": self._later,
        }

    def set_state(self, state: State) -> None:
        """Continues where the state was taken."""
        indices, states = state["iterators_in_use_indices"], state["iterators_in_use_states"]
        if len(indices) != len(self._places):
            raise ValueError(
                f"the state is of an interleave of {len(indices)} datasets at once, this one has "
                f"{len(self._places)}."
            )
        for place, index, one, ended in zip(
            self._places, indices, states, state["exhausted"], strict=True
        ):
            self._restore(place, index, one, bool(ended))
        self._turn = state["next_index_in_cycle"]
        self._next_dataset = state["next_index_in_datasets"]
        # The keys of a dict that went through JSON are text.
        self._later = {int(key): one for key, one in state.get("future_states", {}).items()}

    def _restore(self, place: _Place, index: int, state: State | None, ended: bool) -> None:
        if state is None or ended:
            place.iterator, place.ended = None, state
        else:
            if place.iterator is None or place.index != index:
                place.iterator = self._open(index)
            place.ended = None
            if state:
                place.iterator.set_state(state)
        place.index = index

    def _get_next_index(self) -> int:
        iterator = self._only()
        return 0 if iterator is None else iterator._get_next_index()

    def _set_next_index(self, index: int) -> None:
        self.get_state()  # fills the place
        iterator = self._only()
        assert iterator is not None
        iterator._set_next_index(index)

    def _only(self) -> DatasetIterator[Element] | None:
        if len(self._datasets) != 1:
            raise NotImplementedError(
                "elements of an interleave of several datasets have no numbers."
            )
        return self._places[0].iterator

    def start_prefetch(self) -> None:
        """Begins to read ahead in all places."""
        for place in self._places:
            if place.iterator is not None:
                place.iterator.start_prefetch()

    def close(self) -> None:
        """Ends all work in the background."""
        if not self._closed:
            self._closed = True
            for place in self._places:
                if place.iterator is not None:
                    place.iterator.close()
