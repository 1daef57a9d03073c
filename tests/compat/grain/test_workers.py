"""`mp_prefetch`: the stream and the states of no workers, for every number of them."""

from __future__ import annotations

import os
import sys
import threading

import cloudpickle
import numpy as np
import pytest

import loaderx.compat.grain as grain
from loaderx.compat.grain import experimental
from loaderx.compat.grain.stacking import buffers
from loaderx.compat.grain.worker_chain import ChainWork

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # else workers would import pytest

M, X = grain.MapDataset, experimental


def workers(count, buffered=1):
    return grain.MultiprocessingOptions(num_workers=count, per_worker_buffer_size=buffered)


def is_odd(record):
    return record["n"] % 2 == 1


def record(i):
    return {"n": i, "x": np.full(3, i, np.float32), "t": "a" * (i % 3)}


def noisy(one, rng):
    return {**one, "r": rng.random()}


def without_text(one):
    return {key: one[key] for key in ("n", "x")}


def numbers():
    return M.range(40).seed(1).shuffle().map(record)


PIPELINES = {
    "filter": lambda: numbers().to_iter_dataset().filter(is_odd).map(without_text).batch(6),
    "text": lambda: numbers().random_map(noisy).to_iter_dataset().filter(is_odd).batch(6),
    "batched": lambda: numbers().batch(7, drop_remainder=True).to_iter_dataset(),
    "counted": lambda: numbers().to_iter_dataset().filter(is_odd).random_map(noisy).batch(4),
    "joined": lambda: X.WindowShuffleIterDataset(
        grain.IterDataset.mix(
            [numbers().to_iter_dataset(), numbers().to_iter_dataset().filter(is_odd)]
        ),
        window_size=5,
        seed=3,
    ),
    "interleaved": lambda: X.InterleaveIterDataset(
        [M.range(9).map(record), numbers().to_iter_dataset().filter(is_odd)], cycle_length=2
    ),
}


def steps(it):
    found, states = [], [it.get_state()]
    for element in it:
        found.append(element)
        states.append(it.get_state())
    return found, states


# One worker runs the whole pipeline, several run what has numbers: each case has something to show.
CASES = [(1, "text"), (1, "joined"), *((2, name) for name in PIPELINES)]


@pytest.mark.parametrize(("count", "name"), CASES)
def test_the_stream_is_that_of_no_workers(count, name):
    expected, expected_states = steps(iter(PIPELINES[name]()))
    it = iter(PIPELINES[name]().mp_prefetch(workers(count)))
    found, states = steps(it)
    if count == 1:
        states = [state["iterators_in_use_states"][0] for state in states]
    elif name == "batched":  # one for one: states are those of Grain's workers
        inner = [[one["next_index"] for one in s["iterators_in_use_states"]] for s in states]
        states = [{"next_index": sum(each)} for each in inner]
    np.testing.assert_equal(found, expected)
    assert states == expected_states
    it.set_state(expected_states[3])
    np.testing.assert_equal([*it], expected[3:])
    it.close()


def test_repeat_uses_the_same_worker():
    ds = M.range(4).to_iter_dataset().map(lambda x: (x, os.getpid())).mp_prefetch(workers(1))
    it = iter(X.RepeatIterDataset(ds, 3))
    found = [*it]
    it.close()
    assert [x for x, _ in found] == [0, 1, 2, 3] * 3
    assert len({pid for _, pid in found} - {os.getpid()}) == 1


def set_variable(index, count):
    os.environ["GRAIN_WORKER"] = f"{index} of {count}"


def read_variable(x):
    return os.environ["GRAIN_WORKER"]


def test_worker_init_fn():
    ds = M.range(3).map(read_variable).to_iter_dataset()
    it = iter(ds.mp_prefetch(workers(1), worker_init_fn=set_variable, sequential_slice=True))
    assert [*it] == ["0 of 1"] * 3
    it.close()


def fail_at_five(x):
    if x == 5:
        raise KeyError("five")
    return x


@pytest.mark.parametrize("count", [1, 2])
def test_a_failure_comes_in_its_turn(count):
    it = iter(M.range(9).map(fail_at_five).to_iter_dataset().mp_prefetch(workers(count)))
    assert [next(it) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(KeyError, match="five"):
        next(it)
    it.set_state({"next_index": 6})
    assert [*it] == [6, 7, 8]
    it.close()
    with pytest.raises(ValueError, match="is closed"):
        next(it)


class OneEnd:
    """Ends by raising StopIteration at one index only."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        if index == 10:
            raise StopIteration
        return index


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_source_that_ends_by_itself_stays_at_its_end(count):
    """The elements and the positions are Grain's; a batch by index is left out, as there."""
    ds = M.source(OneEnd())
    for pipeline, expected, position in (
        (ds.to_iter_dataset(), [*range(10)], 10),
        (ds.to_iter_dataset().batch(4), [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]], 10),
        (ds.batch(4).to_iter_dataset(), [[0, 1, 2, 3], [4, 5, 6, 7]], 2),
    ):
        it = iter(pipeline.mp_prefetch(workers(count)))
        assert [np.asarray(element).tolist() for element in it] == expected
        assert [*it] == []
        state = it.get_state()
        of_workers = state.get("iterators_in_use_states", [state])
        assert sum(one["next_index"] for one in of_workers) == position
        it.close()


def stop_from_five(x):
    if x >= 5:
        raise StopIteration
    return x


@pytest.mark.parametrize("count", [0, 1, 2])
def test_stop_iteration_of_a_function_ends_the_stream(count):
    it = iter(M.range(9).to_iter_dataset().map(stop_from_five).batch(2).mp_prefetch(workers(count)))
    assert [element.tolist() for element in it] == [[0, 1], [2, 3], [4]]
    it.close()


class Counted(grain.IterDataset):
    """A source that can only be read in order."""

    def __iter__(self):
        return CountedIterator()


class CountedIterator(grain.DatasetIterator):
    number = 0

    def __next__(self):
        if self.number == 100:
            raise StopIteration
        self.number += 1
        return self.number

    def get_state(self):
        return {"number": self.number}

    def set_state(self, state):
        self.number = state["number"]


def test_a_source_in_order_has_one_worker():
    it = iter(Counted().map(lambda x: -x).mp_prefetch(workers(1)))
    assert [*it] == [*range(-1, -101, -1)]
    it.close()
    with pytest.raises(ValueError, match="Counted can only be read in order"):
        iter(Counted().map(lambda x: -x).mp_prefetch(workers(2)))


def test_chunks_of_a_new_worker():
    """Its chunks have other lengths: what the consumer has had is dropped, and nothing is lost."""
    work = ChainWork(M.range(9).to_iter_dataset(), None)
    first = [work((0, 0, number), buffers.lend) for number in range(3)]
    again = ChainWork(M.range(9).to_iter_dataset(), None)((0, 0, 2), buffers.lend)
    assert [chunk.elements for chunk in first] == [[0], [1], [2]]
    assert (again.elements, again.first, again.states) == ([2], 2, [{"next_index": 3}])


def test_workers_do_not_import_jax():
    def heavy(x):
        import sys

        return [name for name in ("jax", "orbax", "pyarrow") if name in sys.modules]

    it = iter(M.range(1).map(heavy).to_iter_dataset().mp_prefetch(workers(1)))
    assert [*it] == [[]]
    it.close()


def test_states_of_grains_workers():
    one = {
        "next_index_in_cycle": 0,
        "next_index_in_datasets": 1,
        "iterators_in_use_indices": [0],
        "iterators_in_use_states": [{"next_index": 5}],
        "exhausted": [0],
        "future_states": {},
    }
    for count in (1, 2):
        it = iter(M.range(9).to_iter_dataset().mp_prefetch(workers(count)))
        it.set_state(one)
        assert grain.experimental.get_next_index(it) == 5
        several = {**one, "iterators_in_use_states": [{"next_index": 5}, {"next_index": 2}]}
        with pytest.raises(ValueError, match="of Grain with 2 workers"):
            it.set_state(several)
        it.close()


def test_no_workers_is_the_dataset_itself():
    ds = M.range(3).to_iter_dataset()
    assert ds.mp_prefetch(workers(0)) is ds
    with pytest.warns(DeprecationWarning, match="the old name of `mp_prefetch`"):
        assert ds.prefetch(workers(0)) is ds
    with pytest.raises(ValueError, match="`per_worker_buffer_size` must be at least 1, got 0"):
        ds.mp_prefetch(workers(1, buffered=0))


def test_states_go_from_any_number_of_workers_to_any_other():
    def pipeline(workers, threads=0):
        ds = grain.MapDataset.range(23).shuffle(seed=1).map(lambda x: x + 1).to_iter_dataset()
        if threads:
            return grain.experimental.multithread_prefetch(ds, threads, 2)
        return ds.mp_prefetch(grain.MultiprocessingOptions(workers)) if workers else ds

    expected = list(pipeline(0))
    made = [pipeline(0), pipeline(1), pipeline(2), pipeline(0, 1), pipeline(0, 2)]
    states = []
    for ds in made:
        iterator = iter(ds)
        assert [next(iterator) for _ in range(7)] == expected[:7]
        states.append(iterator.get_state())
        iterator.close()
    assert states[1]["iterators_in_use_states"] == [{"next_index": 7}]
    assert states[2]["iterators_in_use_states"] == [{"next_index": 4}, {"next_index": 3}]
    assert states[2]["next_index_in_cycle"] == 1
    assert states[3:] == states[1:3]  # as Grain's: threads read slices, as workers do
    for ds in made:
        iterator = iter(ds)
        for state in states:
            iterator.set_state(state)
            assert [next(iterator) for _ in range(3)] == expected[7:10]
        iterator.close()


def test_one_worker_above_any_stage():
    ds = grain.MapDataset.range(30).seed(3).to_iter_dataset().filter(lambda x: x % 3 > 0)
    ds = ds.random_map(lambda x, rng: x + rng.integers(100)).batch(4)
    in_worker = iter(ds.mp_prefetch(grain.MultiprocessingOptions(1)))
    next(in_worker)
    state = in_worker.get_state()
    in_worker.close()
    here = iter(ds)
    here.set_state(state)
    np.testing.assert_equal(list(here), list(ds)[1:])
    two = {**state, "iterators_in_use_states": 2 * state["iterators_in_use_states"]}
    with pytest.raises(ValueError, match=r"of Grain with 2 workers.*0 or 1 workers"):
        here.set_state(two)


@pytest.mark.parametrize("close", [False, True])
@pytest.mark.parametrize("by_index", [False, True])
def test_a_thread_that_finds_nothing_ends(by_index, close):
    begun = threading.Event()

    def never(x):
        begun.set()
        return False

    ds = grain.MapDataset.range(3).repeat()
    ds = ds.filter(never).to_iter_dataset() if by_index else ds.to_iter_dataset().filter(never)
    iterator = iter(grain.experimental.multithread_prefetch(ds, 1, 1))
    before = {*threading.enumerate()}
    iterator.start_prefetch()
    (thread,) = {*threading.enumerate()} - before
    begun.wait()
    if close:
        iterator.close()
    del iterator
    thread.join(30)
    assert not thread.is_alive()
