"""torch's DataLoader in loaderx's hands, without torch."""

from __future__ import annotations

import copy
import functools
import gc
import json
import os
import pickle
import random
import subprocess
import sys
import threading
import warnings

import cloudpickle
import numpy as np
import pytest

from loaderx import Dataset as Chain
from loaderx import LoaderxError, LoaderxWarning, MissingPackageError, RecordError, StateError
from loaderx.compat import torch as data
from loaderx.engines.processes.pickling import PicklingError
from workers import run_script

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # else workers would import pytest


class Squares:
    """A map-style dataset."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        if not 0 <= index < self.n:
            raise IndexError(index)
        return np.array([index, index * index], np.float32), index


class Together(Squares):
    def __getitem__(self, index):
        raise AssertionError("read one by one")

    def __getitems__(self, indices):
        return [Squares.__getitem__(self, i) for i in indices]


class Noisy(Squares):
    """Draws from the global generators, as many datasets of torch do."""

    def __getitem__(self, index):
        return index, random.random(), np.random.rand()  # noqa: NPY002


class Stream:
    """Can only be iterated."""

    def __iter__(self):
        return iter(range(10))


def labels(loader):
    return [batch[1].tolist() for batch in loader]


# Batches ----------------------------------------------------------------------------------------


def test_batches_in_order():
    loader = data.DataLoader(Squares(10), batch_size=4)
    assert len(loader) == 3
    assert labels(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    x, y = next(iter(loader))
    assert (type(x), x.dtype, x.shape, y.dtype) == (np.ndarray, np.float32, (4, 2), np.int64)


def test_drop_last():
    loader = data.DataLoader(Squares(10), batch_size=4, drop_last=True)
    assert len(loader) == len(list(loader)) == 2


def test_no_batches_at_all():
    assert list(data.DataLoader(Squares(3), batch_size=4, drop_last=True)) == []
    assert list(data.DataLoader([], batch_size=4)) == []
    loader = data.DataLoader([])
    assert loader.state_dict()["epoch"] == 0


def test_every_epoch_is_shuffled_anew_and_reproducibly():
    def epochs(loader):
        return [np.concatenate(labels(loader)).tolist() for _ in range(3)]

    one = epochs(data.DataLoader(Squares(50), batch_size=8, shuffle=True, generator=5))
    assert all(sorted(epoch) == list(range(50)) for epoch in one)
    assert one[0] != one[1] != one[2]
    assert epochs(data.DataLoader(Squares(50), 8, True, generator=5)) == one
    assert epochs(data.DataLoader(Squares(50), 8, True)) != one


def test_single_records():
    loader = data.DataLoader(Squares(3), batch_size=None)
    assert len(loader) == 3
    found = list(loader)
    assert [type(x) for x in found[0]] == [np.ndarray, int]
    assert [y for _, y in found] == [0, 1, 2]


def test_getitems_is_used():
    assert labels(data.DataLoader(Together(5), batch_size=3)) == [[0, 1, 2], [3, 4]]


def test_a_dataset_that_grows_between_epochs():
    dataset = [1, 2, 3]
    loader = data.DataLoader(dataset, batch_size=2)
    assert [batch.tolist() for batch in loader] == [[1, 2], [3]]
    dataset.append(4)
    assert [batch.tolist() for batch in loader] == [[1, 2], [3, 4]]


class TensorDataset:
    """Looks like torch's, to `adapt`."""

    __module__ = "torch.utils.data.dataset"

    def __init__(self, *tensors):
        self.tensors = tensors

    def __len__(self):
        return len(self.tensors[0])

    def __getitem__(self, index):
        return tuple(tensor[index] for tensor in self.tensors)


class CpuArray(np.ndarray):
    """An array with what is asked of a tensor."""

    requires_grad = False

    class device:
        type = "cpu"


def test_the_tensors_of_a_dataset_may_be_exchanged():
    dataset = TensorDataset(np.arange(4).view(CpuArray), np.ones(4).view(CpuArray))
    loader = data.DataLoader(dataset, batch_size=4)
    (first,) = loader
    assert [type(first), first[0].tolist()] == [list, [0, 1, 2, 3]]
    dataset.tensors = (np.arange(4, 8).view(CpuArray), dataset.tensors[1])
    (second,) = loader
    assert second[0].tolist() == [4, 5, 6, 7]


def test_a_sampler_that_gives_nothing():
    class Empty:
        def __len__(self):
            return 3

        def __iter__(self):
            return iter(())

    assert list(data.DataLoader(Squares(4), 2, sampler=Empty())) == []


def test_a_sampler_is_read_once_for_an_epoch():
    class Counting:
        reads = 0

        def __len__(self):
            return 4 - 2 * (self.reads % 2)

        def __iter__(self):
            self.reads += 1
            return iter(range(4 - 2 * (self.reads % 2)))

    sampler = Counting()
    loader = data.DataLoader(Squares(4), 2, sampler=sampler, num_workers=1)
    for epoch in range(3):
        list(loader)
        assert sampler.reads == epoch + 1


def test_a_loop_inside_a_loop_over_the_same_loader():
    loader = data.DataLoader(Squares(4), batch_size=2, sampler=Evens(4), num_workers=0)
    assert [len(list(loader)) for _ in loader] == [1]


def test_arrays_are_gathered():
    loader = data.DataLoader(np.arange(12).reshape(6, 2), batch_size=4)
    assert [batch.shape for batch in loader] == [(4, 2), (2, 2)]
    chain = Chain.from_arrays(np.arange(6), np.arange(6) * 2)
    batches = list(data.DataLoader(chain, batch_size=4, num_workers=2))
    assert type(batches[0]) is list
    assert [batch[1].tolist() for batch in batches] == [[0, 2, 4, 6], [8, 10]]


def test_a_collate_fn_gets_the_records_as_they_are():
    def collate(records):
        assert all(type(record) is tuple and type(record[1]) is int for record in records)
        return {"n": len(records), "names": [str(y) for _, y in records]}

    loader = data.DataLoader(Squares(3), batch_size=2, collate_fn=collate)
    assert list(loader) == [{"n": 2, "names": ["0", "1"]}, {"n": 1, "names": ["2"]}]


def test_an_iterable_dataset_is_read_in_this_thread():
    loader = data.DataLoader(Stream(), batch_size=4)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert len(list(loader)) == 3
    assert len(list(data.DataLoader(Stream(), batch_size=4, drop_last=True))) == 2
    assert list(data.DataLoader(Stream(), batch_size=None)) == list(range(10))
    with pytest.warns(LoaderxWarning, match=r"num_workers=2 is not used: Stream has no length"):
        list(data.DataLoader(Stream(), batch_size=4, num_workers=2))
    with pytest.raises(TypeError, match="`dataset`, Stream, has no __len__"):
        len(loader)


# Samplers ---------------------------------------------------------------------------------------


class Evens:
    """A sampler, as torch's: an iterable with a length."""

    def __init__(self, n):
        self.n, self.epoch = n, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return (self.n + 1) // 2

    def __iter__(self):
        order = list(range(0, self.n, 2))
        random.Random(self.epoch).shuffle(order)
        return iter(order)


class Pairs:
    """A batch sampler."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __len__(self):
        return len(self.sampler) // 2

    def __iter__(self):
        indices = iter(self.sampler)
        return map(list, zip(indices, indices))


def test_a_sampler_is_read_anew_for_every_epoch():
    sampler = Evens(10)
    loader = data.DataLoader(Squares(10), batch_size=2, sampler=sampler)
    assert len(loader) == 3
    for epoch in range(3):
        sampler.set_epoch(epoch)
        assert np.concatenate(labels(loader)).tolist() == list(sampler)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_sampler(workers):
    batches = [[3, 1], [2], np.array([0, 4, 5])]
    loader = data.DataLoader(Squares(6), batch_sampler=batches, num_workers=workers)
    assert len(loader) == 3
    assert labels(loader) == [[3, 1], [2], [0, 4, 5]]


def test_keys_of_any_kind():
    records = {"a": 1, "b": 2, ("c", 3): 4}
    assert [x.tolist() for x in data.DataLoader(records, 2, sampler=["b", ("c", 3), "a"])] == [
        [2, 4],
        [1],
    ]
    assert list(data.DataLoader(records, None, sampler=["b", "a"])) == [2, 1]


def test_a_sampler_without_a_length_may_be_endless():
    def endless():
        while True:
            yield from range(5)

    class Endless:
        def __iter__(self):
            return endless()

    loader = data.DataLoader(Squares(5), batch_size=3, sampler=Endless())
    found = iter(loader)
    assert [next(found)[1].tolist() for _ in range(3)] == [[0, 1, 2], [3, 4, 0], [1, 2, 3]]
    with pytest.raises(TypeError, match="`sampler`, Endless, has no __len__"):
        len(loader)


# Workers ----------------------------------------------------------------------------------------


def test_the_stream_is_the_same_for_any_number_of_workers():
    def epochs(workers):
        loader = data.DataLoader(Noisy(20), 4, True, num_workers=workers, generator=0)
        return [[x.tolist() for batch in loader for x in batch] for _ in range(2)]

    alone = epochs(0)
    assert epochs(2) == alone
    assert alone[0] != alone[1]
    draws = {x for epoch in alone for row in epoch[1::3] for x in row}
    assert len(draws) == 40


def test_the_global_generators_are_left_as_they_were():
    def states():
        return random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002

    before = states()
    list(data.DataLoader(Noisy(4), batch_size=2))
    assert states() == before


class Process(Squares):
    def __init__(self, n):
        super().__init__(n)
        self.scale = 1

    def __getitem__(self, index):
        return os.getpid(), self.scale


def pids_and_scales(loader):
    pids, scales = zip(*[(np.ravel(pid), np.ravel(scale)) for pid, scale in loader])
    return {*np.concatenate(pids).tolist()}, {*np.concatenate(scales).tolist()}


@pytest.mark.parametrize(
    "options",
    [{}, {"sampler": Evens(12)}, {"batch_size": None}],
    ids=["batches", "sampler", "records"],
)
def test_workers_get_the_dataset_again_when_it_has_changed(options):
    dataset = Process(6)
    loader = data.DataLoader(dataset, **{"batch_size": 2, "num_workers": 1, **options})
    first, second = pids_and_scales(loader), pids_and_scales(loader)
    assert first == second
    assert os.getpid() not in first[0]
    for scale in (7, 8, 7):
        dataset.scale = scale
        assert pids_and_scales(loader) == (first[0], {scale})
    dataset.other = [dataset]  # of another kind, and a cycle
    dataset.scale = 9
    assert pids_and_scales(loader) == (first[0], {9})


def test_a_collate_fn_of_the_dataset_sees_its_changes():
    class Collating(Process):
        def collate(self, records):
            return np.array([pid for pid, _ in records]), np.full(len(records), self.scale)

    dataset = Collating(4)
    loader = data.DataLoader(dataset, 2, num_workers=1, collate_fn=dataset.collate)
    first = pids_and_scales(loader)
    dataset.scale = 3
    assert pids_and_scales(loader) == (first[0], {3})


@pytest.mark.parametrize(
    "held",
    [np.zeros(1 << 23), functools.cache(lambda x: x)],
    ids=["large", "what only new workers can be given"],
)
def test_new_workers_where_the_dataset_cannot_be_sent(held):
    dataset = Process(4)
    dataset.held = held
    loader = data.DataLoader(dataset, 2, num_workers=1)
    first, _ = pids_and_scales(loader)
    dataset.scale = 2
    second, scales = pids_and_scales(loader)
    assert scales == {2}
    assert not first & second


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize("sampler", [None, Evens(4)], ids=["plain", "sampler"])
def test_a_copy_has_workers_of_its_own(copied, sampler):
    loader = data.DataLoader(Process(2), 2, sampler=sampler, num_workers=1)
    pids, _ = pids_and_scales(loader)
    other = copied(loader)
    loader.dataset.scale = 2
    assert pids_and_scales(loader) == (pids, {2})
    others, scales = pids_and_scales(other)
    assert scales == {1}
    assert not pids & others
    other.dataset.scale = 3
    del loader
    gc.collect()
    assert pids_and_scales(other) == (others, {3})


def test_a_fork_has_workers_of_its_own():
    done = run_script(
        """
        import os
        from loaderx.compat.torch import DataLoader

        class Scaled:
            scale = 1

            def __len__(self):
                return 4

            def __getitem__(self, index):
                return index * self.scale

        dataset = Scaled()
        for sampler in (None, [3, 2, 1, 0]):
            loader = DataLoader(dataset, 4, sampler=sampler, num_workers=1)
            list(loader)
            child = os.fork()
            if child == 0:
                dataset.scale = 10
                print(*loader, *loader, flush=True)
                os._exit(0)
            os.waitpid(child, 0)
            print(*loader, flush=True)
        """
    )
    expected = ["[ 0 10 20 30] [ 0 10 20 30]", "[0 1 2 3]"]
    reverse = ["[30 20 10  0] [30 20 10  0]", "[3 2 1 0]"]
    assert done.stdout.splitlines() == expected + reverse, done.stderr


def test_a_change_in_the_middle_of_an_epoch():
    """The rest of the epoch that was left may still be read; its workers are other ones."""
    dataset = Process(40)
    loader = data.DataLoader(dataset, 2, num_workers=1)
    old = iter(loader)
    first, _ = next(old)
    dataset.scale = 2
    pids, scales = pids_and_scales(loader)
    assert scales == {2}
    assert first[0] not in pids
    old.close()


def test_worker_init_fn_is_called_first_in_each_worker():
    def begin(worker):
        os.environ["LOADERX_TEST_WORKER"] = str(worker)

    class Workers(Squares):
        def __getitem__(self, index):
            return int(os.environ["LOADERX_TEST_WORKER"])

    loader = data.DataLoader(Workers(40), 2, num_workers=2, worker_init_fn=begin)
    assert {x for batch in loader for x in batch.tolist()} <= {0, 1}
    assert "LOADERX_TEST_WORKER" not in os.environ


@pytest.mark.parametrize("kind", ["sampler", "batch_sampler"])
def test_workers_stay_when_a_sampler_gives_other_indices(kind):
    class Processes(Squares):
        def __getitem__(self, index):
            return os.getpid(), index

    sampler = Evens(8)
    if kind == "sampler":
        options = {"batch_size": 2, "sampler": sampler}
    else:
        options = {"batch_sampler": Pairs(sampler)}
    loader = data.DataLoader(Processes(8), num_workers=1, **options)
    workers = set()
    for epoch in range(3):
        sampler.set_epoch(epoch)
        batches = list(loader)
        assert [y for _, y in batches for y in y.tolist()] == list(sampler)
        workers |= {pid for pids, _ in batches for pid in pids.tolist()}
    assert len(workers) == 1
    sampler.n = 4  # other lengths: another number of batches, and new workers
    assert [y for _, y in loader for y in y.tolist()] == list(sampler)


class Growing:
    """Two batches of keys, longer in every epoch."""

    epoch = 0

    def __len__(self):
        return 2

    def __iter__(self):
        self.epoch += 1
        return iter([["a"] * self.epoch, ["é"]])


class Keyed:
    def __getitem__(self, key):
        return key, os.getpid()


def test_workers_stay_when_a_sampler_gives_other_keys_and_batch_sizes():
    loader = data.DataLoader(Keyed(), batch_sampler=Growing(), num_workers=1)
    workers = set()
    for epoch in range(1, 4):
        (keys, pids), (others, _) = loader
        assert (*keys, *others) == (*"a" * epoch, "é")
        workers |= set(pids.tolist())
    assert len(workers) == 1


def test_persistent_workers_as_in_torch():
    kept = data.DataLoader(Process(2), 2, num_workers=1, persistent_workers=True)
    (first,), (second,) = kept, kept
    assert first[0].tolist() == second[0].tolist()
    kept.dataset.scale = 2
    (third,) = kept
    assert third[1].tolist() == [1, 1]
    new = data.DataLoader(Process(2), 2, num_workers=1, persistent_workers=False)
    (first,), (second,) = new, new
    assert first[0].tolist() != second[0].tolist()


# Errors -----------------------------------------------------------------------------------------


class MissingError(KeyError):
    pass


class Broken(Squares):
    def __getitem__(self, index):
        if index == 3:
            raise MissingError("three")
        return index


class Locked(Squares):
    def __init__(self, n):
        super().__init__(n)
        self.lock = threading.Lock()


def lock_of(records):
    return threading.Lock()


def test_advice_is_for_the_arguments_of_this_class():
    said = (
        r"^the dataset or `collate_fn` cannot.* when the loader was made.* Or use num_workers=0\.$"
    )
    with pytest.raises(PicklingError, match=said):
        list(data.DataLoader(Locked(4), batch_size=2, num_workers=1))
    with pytest.raises(TypeError, match="cannot pickle") as caught:
        list(data.DataLoader(Squares(4), batch_size=2, num_workers=1, collate_fn=lock_of))
    said = " in the dataset or in `collate_fn`, or use num_workers=0."
    assert caught.value.__notes__[-1].endswith(said)


def test_advice_for_data_that_are_too_large(monkeypatch):
    monkeypatch.setattr("loaderx.engines.processes.pickling.free_memory", lambda: 1000)
    dataset = Squares(4)
    dataset.rows = np.zeros(10_000)
    with pytest.raises(PicklingError, match=r"np\.save and open it with loaderx\.Dataset\.open:"):
        list(data.DataLoader(dataset, num_workers=1))


def test_errors_of_workers_are_for_the_arguments_of_this_class():
    held = threading.Lock()

    def begin(worker):
        raise OSError(worker, held)

    def fail(worker):
        raise OSError("no device")

    def list_with(**options):
        list(data.DataLoader(Squares(4), batch_size=2, num_workers=1, **options))

    with pytest.raises(PicklingError, match="^`worker_init_fn` cannot be sent"):
        list_with(worker_init_fn=begin)
    with pytest.raises(LoaderxError, match=r"^`worker_init_fn` failed in worker 0 .*: OSError"):
        list_with(worker_init_fn=fail)
    with (
        pytest.warns(LoaderxWarning, match="died"),
        pytest.raises(RecordError, match=r"^step 0: 3 worker .* With num_workers=0 the same"),
    ):
        list_with(collate_fn=lambda records: os._exit(3))


@pytest.mark.parametrize("workers", [0, 1])
def test_exceptions_come_as_they_were_raised(workers):
    found = iter(data.DataLoader(Broken(6), batch_size=2, num_workers=workers))
    assert next(found).tolist() == [0, 1]
    with pytest.raises(MissingError, match="three") as caught:
        next(found)
    assert caught.value.__notes__[-1].startswith("loaderx: step 1: ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "`batch_size` must be at least 1"),
        ({"num_workers": -1}, "`num_workers` must be at least 0"),
        ({"timeout": -1}, "`timeout` must be a number of seconds"),
        ({"sampler": [0], "shuffle": True}, "`sampler` and `shuffle` cannot be used together"),
        ({"batch_sampler": [[0]], "batch_size": 2}, "`batch_sampler` and `batch_size`"),
        ({"batch_sampler": [[0]], "shuffle": True}, "`batch_sampler` and `shuffle`"),
        ({"batch_sampler": [[0]], "drop_last": True}, "`batch_sampler` and `drop_last`"),
        ({"batch_sampler": [[0]], "sampler": [0]}, "`batch_sampler` and `sampler`"),
        ({"batch_size": None, "drop_last": True}, "`drop_last` needs a `batch_size`"),
        ({"prefetch_factor": 2}, "`prefetch_factor` needs num_workers above 0"),
        ({"persistent_workers": True}, "`persistent_workers` needs num_workers above 0"),
        ({"generator": "a"}, "`generator` must be a seed"),
        ({"dataset": Squares}, r"is the class Squares; pass an object: Squares\(...\)"),
        ({"dataset": 3}, "needs __getitem__ and __len__, or __iter__; got int"),
        ({"dataset": iter([1])}, "can be read only once"),
        ({"dataset": Stream(), "shuffle": True}, r"`shuffle` needs .* Stream can only be iterated"),
        ({"dataset": Stream(), "sampler": [0]}, r"from_iterable\(dataset\)\.shuffle\(window=1000"),
    ],
)
def test_arguments_that_torch_refuses(options, message):
    options = {"dataset": Squares(4), **options}
    with pytest.raises((ValueError, TypeError), match=message):
        data.DataLoader(**options)


def test_arguments_without_effect():
    loader = data.DataLoader(
        Squares(2), pin_memory=True, pin_memory_device="cuda", multiprocessing_context="fork",
        in_order=False,
    )  # fmt: skip
    assert len(list(loader)) == 2


def test_arguments_are_fixed():
    loader = data.DataLoader(Squares(2))
    loader.note = "attributes of one's own are free"
    with pytest.raises(
        ValueError, match="`batch_size` of a loader is fixed: make a new DataLoader"
    ):
        loader.batch_size = 3


def test_names_that_are_torchs_own(monkeypatch):
    with pytest.raises(AttributeError, match=r"'Whatever'\. What it does not have .* from there"):
        data.Whatever  # noqa: B018
    monkeypatch.setitem(sys.modules, "torch.utils.data", None)  # as if torch were not installed
    with pytest.raises(MissingPackageError, match=r"Subset is torch's own.* write ds\[indices\]"):
        from loaderx.compat.torch import Subset  # noqa: F401
    with pytest.raises(MissingPackageError, match=r"^ConcatDataset is torch's own: pip install t"):
        data.Dataset() + data.Dataset()


def test_get_worker_info():
    class Telling(Squares):
        def __getitem__(self, index):
            return data.get_worker_info() is None

    assert all(batch.all() for batch in data.DataLoader(Telling(4), 2, num_workers=1))


# States -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{}, {"sampler": Evens(40)}, {"batch_size": None}],
    ids=["plain", "sampler", "no batches"],
)
def test_a_state_continues_at_every_batch(options):
    def make():
        options.setdefault("batch_size", 4)
        shuffle = "sampler" not in options
        records = Squares(20 if shuffle else 40)
        return data.DataLoader(records, shuffle=shuffle, generator=1, **options)

    def take(loader):
        return [np.asarray(batch[1]).tolist() for batch in loader]

    loader = make()
    expected = take(loader) + take(loader)
    size = len(loader)
    for steps in range(2 * size):
        begun, found = make(), []
        for _ in range(steps // size):
            found += take(begun)
        batches = iter(begun)
        for _ in range(steps % size):
            found.append(np.asarray(next(batches)[1]).tolist())
        state = json.loads(json.dumps(begun.state_dict()))
        other = make()
        other.load_state_dict(state)
        assert other.state_dict() == state
        found += take(other)
        while len(found) < len(expected):
            found += take(other)
        assert found == expected


def test_the_state_of_an_iterated_dataset():
    loader = data.DataLoader(Stream(), batch_size=4)
    next(iter(loader))
    other = data.DataLoader(Stream(), batch_size=4)
    other.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in other] == [[4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize("state", [{}, None, {"version": 2, "epoch": 0, "state": None}])
def test_damaged_states_are_refused(state):
    with pytest.raises(StateError):
        data.DataLoader(Squares(4)).load_state_dict(state)
    with pytest.raises(StateError, match="epoch must be a whole number"):
        data.DataLoader(Squares(4)).load_state_dict({"version": 1, "epoch": -1, "state": None})
    with pytest.raises(StateError, match="seed must be a whole number"):
        damaged = {"version": 1, "epoch": 1, "seed": "1", "state": None}
        data.DataLoader(Squares(4)).load_state_dict(damaged)


# The tutorials of JAX ---------------------------------------------------------------------------


def as_arrays(samples):
    if isinstance(samples[0], tuple):
        return [as_arrays(part) for part in zip(*samples)]
    return np.stack([np.asarray(sample) for sample in samples])


class NumpyLoader(data.DataLoader):
    """Every argument is passed on, also those that have no meaning here."""

    def __init__(self, dataset, batch_size=1, shuffle=False, num_workers=0):
        super(self.__class__, self).__init__(
            dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=None,
            batch_sampler=None,
            num_workers=num_workers,
            collate_fn=as_arrays,
            pin_memory=False,
            drop_last=False,
            timeout=0,
            worker_init_fn=None,
        )


def flat(picture):
    return np.asarray(picture, np.float32).ravel()


class Pictures(data.Dataset):
    def __init__(self, n, transform):
        self.n, self.transform = n, transform

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return self.transform(np.full((28, 28), index % 256, np.uint8)), index % 10


@pytest.mark.parametrize("workers", [0, 1])
def test_the_loader_of_the_jax_tutorials(workers):
    loader = NumpyLoader(Pictures(300, flat), batch_size=128, num_workers=workers)
    for _ in range(2):
        shapes = [(x.shape, x.dtype, y.shape) for x, y in loader]
    assert shapes[0] == ((128, 784), np.float32, (128,))
    assert shapes[-1] == ((44, 784), np.float32, (44,))


def test_importing_it_is_light():
    script = (
        "import sys; from loaderx.compat import torch\n"
        "print([m for m in ('torch', 'jax', 'multiprocessing', 'cloudpickle') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_no_warning_where_all_is_well():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = data.DataLoader(Squares(20), batch_size=4, shuffle=True)
        for _ in range(3):
            list(loader)
