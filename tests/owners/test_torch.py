"""The loader with torch's words gives what torch's own gives."""

from __future__ import annotations

import json
import random
from collections import namedtuple
from functools import partial

import numpy as np
import pytest

from loaderx.compat import torch as ours
from loaderx.compat.torch.collate import is_tensor
from workers import run_script

pytestmark = [pytest.mark.owners, pytest.mark.foreign]
torch = pytest.importorskip("torch", reason="torch is not installed")
theirs = pytest.importorskip("torch.utils.data", reason="torch is not installed")

Pair = namedtuple("Pair", ["x", "y"])


class Records(theirs.Dataset):
    """Records of one kind."""

    def __init__(self, make, n=23):
        self.make, self.n = make, n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        if index >= self.n:
            raise IndexError(index)
        return self.make(index)


def tensors(i):
    return torch.arange(4, dtype=torch.float32) + i, torch.tensor(i), i


def arrays(i):
    return {"x": np.full((2, 3), i, np.uint8), "y": i, "z": 0.5 * i, "t": f"text {i}"}


def nested(i):
    return [Pair(i, (np.float32(i), True)), {"a": [torch.ones(2) * i, b"bytes"]}]


def number(i):
    return i


KINDS = {make.__name__: make for make in (tensors, arrays, nested, number)}


def in_numpy(tree):
    """A batch of torch's with arrays in place of tensors."""
    if is_tensor(tree):
        return tree.numpy()
    if isinstance(tree, dict):
        return {key: in_numpy(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        made = [in_numpy(value) for value in tree]
        return type(tree)(*made) if hasattr(tree, "_fields") else type(tree)(made)
    return tree


def assert_same(one, other):
    assert type(one) is type(other), (one, other)
    if isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for a, b in zip(one, other):
            assert_same(a, b)
    else:
        assert one == other


def compare(make, epochs=2, before=lambda loader, epoch: None):
    """Every batch of several epochs; ``make`` is given the module."""
    their_loader, our_loader = make(theirs), make(ours)
    for epoch in range(epochs):
        before(their_loader, epoch)
        before(our_loader, epoch)
        expected = [in_numpy(batch) for batch in their_loader]
        found = list(our_loader)
        assert len(found) == len(expected)
        for one, other in zip(found, expected):
            assert_same(one, other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 4},
        {"batch_size": 4, "drop_last": True},
        {"batch_size": None},
        {"batch_sampler": [[3, 1], [2], [0, 4, 5]]},
        {"batch_size": 5, "sampler": [7, 7, 3, 0, 22]},
    ],
    ids=str,
)
def test_the_same_batches(kind, options):
    compare(lambda module: module.DataLoader(Records(KINDS[kind]), **options))


SAMPLERS = {
    "random": lambda ds, g: theirs.RandomSampler(ds, generator=g),
    "replacement": lambda ds, g: theirs.RandomSampler(ds, True, 40, generator=g),
    "weighted": lambda ds, g: theirs.WeightedRandomSampler(range(1, 24), 30, generator=g),
    "subset": lambda ds, g: theirs.SubsetRandomSampler(range(3, 17), generator=g),
    "sequential": lambda ds, g: theirs.SequentialSampler(ds),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_of_torch(name, workers):
    def make(module):
        dataset = Records(arrays)
        sampler = SAMPLERS[name](dataset, torch.Generator().manual_seed(3))
        return module.DataLoader(dataset, 4, sampler=sampler, num_workers=workers)

    compare(make)


def test_batch_samplers_of_torch():
    def make(module):
        dataset = Records(tensors)
        order = theirs.RandomSampler(dataset, generator=torch.Generator().manual_seed(3))
        batches = theirs.BatchSampler(order, 4, drop_last=True)
        return module.DataLoader(dataset, batch_sampler=batches)

    compare(make)


def test_a_distributed_sampler():
    def make(module):
        dataset = Records(number)
        sampler = theirs.DistributedSampler(dataset, num_replicas=2, rank=1, seed=5)
        return module.DataLoader(dataset, 4, sampler=sampler)

    compare(make, 3, lambda loader, epoch: loader.sampler.set_epoch(epoch))


def test_datasets_of_torch():
    def make(module, shuffle=False):
        whole = theirs.TensorDataset(torch.arange(20) * 2, torch.ones(20, 3))
        part = theirs.Subset(whole, [3, 1, 4, 1, 5, 9])
        both = theirs.ConcatDataset([whole, part, theirs.random_split(whole, [5, 15])[0]])
        return module.DataLoader(both, 4)

    torch.manual_seed(0)
    made = {module: make(module) for module in (theirs, ours)}
    torch.manual_seed(0)
    made[ours] = make(ours)
    torch.manual_seed(0)
    made[theirs] = make(theirs)
    compare(made.__getitem__, 1)


def test_a_tensor_dataset_is_gathered():
    dataset = theirs.TensorDataset(torch.arange(20), torch.rand(20, 3))
    compare(lambda module: module.DataLoader(dataset, 6))
    shuffled = ours.DataLoader(dataset, 6, shuffle=True)
    assert sorted(x for x, _ in shuffled for x in x.tolist()) == list(range(20))


def test_an_iterable_dataset():
    class Stream(theirs.IterableDataset):
        def __iter__(self):
            return map(tensors, range(11))

    compare(lambda module: module.DataLoader(Stream(), 4))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_collate_fn_that_makes_tensors(workers):
    collate = partial(theirs.default_collate)
    loader = ours.DataLoader(Records(tensors), 4, collate_fn=collate, num_workers=workers)
    assert all(isinstance(leaf, np.ndarray) for batch in loader for leaf in batch)


def test_draws_of_torch_are_the_same_for_any_number_of_workers():
    def noisy(i):
        return torch.rand(3), i

    def epochs(workers):
        loader = ours.DataLoader(Records(noisy), 4, True, num_workers=workers, generator=2)
        return [[x.tolist() for batch in loader for x in batch] for _ in range(2)]

    alone = epochs(0)
    assert alone == epochs(1)
    assert alone[0] != alone[1]


def test_a_generator_of_torch_is_a_seed():
    def order(seed):
        generator = torch.Generator().manual_seed(seed)
        loader = ours.DataLoader(Records(number), 23, True, generator=generator)
        return next(iter(loader)).tolist()

    assert order(1) == order(1) != order(2)


def orders(loaders, epochs=2):
    return [[x.tolist() for loader in loaders for x in loader] for _ in range(epochs)]


def noisy(i):
    return torch.rand(1).item() + np.random.rand() + random.random()  # noqa: NPY002


@pytest.mark.parametrize("make", [number, noisy])
@pytest.mark.parametrize("module", [theirs, ours], ids=["theirs", "ours"])
def test_a_sweep_over_seeds(module, make):
    """What torch's loader does, ours does as well."""

    def run(seed):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        dataset = Records(make)
        train = module.DataLoader(dataset, 23, shuffle=True)
        other = module.DataLoader(dataset, 23, shuffle=True)
        return orders([train, other])

    one, again, next_seed = run(1), run(1), run(2)
    assert one == again
    drawn = [tuple(order) for epochs in (one, next_seed) for epoch in epochs for order in epoch]
    assert len(set(drawn)) == 8  # two seeds, two loaders, two epochs


@pytest.mark.parametrize("module", [theirs, ours], ids=["theirs", "ours"])
def test_loaders_that_share_a_generator(module):
    def run(seed):
        shared = torch.Generator()
        loaders = [module.DataLoader(Records(number), 23, True, generator=shared) for _ in "ab"]
        shared.manual_seed(seed)
        return orders(loaders)

    one, again, other = run(1), run(1), run(2)
    assert one == again
    assert (
        len({tuple(order) for epochs in (one, other) for epoch in epochs for order in epoch}) == 8
    )


def test_what_names_of_torch_stand_in_a_dataset():
    """`random_split` has a generator among its defaults, which is not sent by value."""
    done = run_script(
        """
        import torch.utils.data as theirs
        from torch.utils.data import random_split
        from loaderx.compat.torch import DataLoader

        class Split(theirs.Dataset):
            def __len__(self):
                return 2

            def __getitem__(self, index):
                return len(random_split(range(9), [4, 5])[index])

        print(next(iter(DataLoader(Split(), 2, num_workers=1))))
        """
    )
    assert done.stdout == "[4 5]\n", done.stderr


def test_a_seed_that_is_set_after_the_loader_was_made():
    found = []
    for seed in (1, 2, 1):
        loader = ours.DataLoader(Records(number), 23, shuffle=True)
        torch.manual_seed(seed)
        found.append(orders([loader]))
    assert found[0] == found[2] != found[1]


def test_a_state_has_the_seed_that_was_drawn():
    loader = ours.DataLoader(Records(noisy), 4, shuffle=True)
    batches = iter(loader)
    next(batches)
    other = ours.DataLoader(Records(noisy), 4, shuffle=True)
    other.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert_same([*other, *other], [*batches, *loader])


def test_another_default_device():
    with torch.device("meta"):
        loader = ours.DataLoader(Records(number), 23, shuffle=True)
        assert sorted(next(iter(loader)).tolist()) == list(range(23))


class OfOurs(ours.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return index


def test_names_of_torch():
    from loaderx.compat.torch import ConcatDataset, Subset, random_split

    assert Subset is theirs.Subset
    names = {one for one in theirs.__all__ if one[0].isupper() and "Pipe" not in one}
    names |= {"default_collate", "default_convert", "get_worker_info", "random_split"}
    assert all(hasattr(ours, name) for name in names - {"DataChunk"})
    both = OfOurs() + OfOurs()
    assert type(both) is ConcatDataset
    assert [x.tolist() for x in ours.DataLoader(both, 2)] == [[0, 1], [0, 1]]
    torch.manual_seed(0)
    train, val = random_split(Records(number), [0.5, 0.5])
    batches = ours.DataLoader(ConcatDataset([train, val]), 23, num_workers=1)
    assert sorted(next(iter(batches)).tolist()) == list(range(23))


MODULE = """
from torch.utils.data import Dataset, Subset

class Looking(Dataset):
    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        return [isinstance(self.dataset, kind) for kind in (Dataset, Subset)]
"""


def test_a_class_of_torch_is_the_same_in_a_module_that_imports_it(tmp_path):
    (tmp_path / "looking.py").write_text(MODULE)
    done = run_script(
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import torch.utils.data as theirs
        from loaderx.compat.torch import DataLoader
        from looking import Looking

        class Own(theirs.Dataset):
            def __len__(self):
                return 1

        for dataset in (Own(), theirs.Subset(Own(), [0])):
            for workers in (0, 1):
                (batch,) = DataLoader(Looking(dataset), num_workers=workers)
                print([bool(is_one) for (is_one,) in batch])
        """
    )
    assert done.stdout == "[True, False]\n" * 2 + "[True, True]\n" * 2, done.stderr


def test_workers_do_not_import_torch_for_its_classes_alone():
    done = run_script(
        """
        import sys
        import numpy as np
        import torch.utils.data as theirs
        from loaderx.compat.torch import DataLoader

        class Ones(theirs.Dataset):
            scale = 1

            def __len__(self):
                return 9

            def __getitem__(self, index):
                return np.ones(2) * self.scale, "torch" in sys.modules

        dataset = Ones()
        parts = theirs.random_split(dataset, [6, 3])
        for each in (dataset, parts[0], theirs.ConcatDataset(parts)):
            loader = DataLoader(each, 3, num_workers=1)
            for dataset.scale in (1, 2):
                for x, imported in loader:
                    print(int(x.sum()), int(imported.sum()))
        """
    )
    ones, twos = 3 * ["6 0"], 3 * ["12 0"]
    expected = [*ones, *twos, *ones[:2], *twos[:2], *ones, *twos]
    assert done.stdout.splitlines() == expected, done.stderr


def test_what_torch_refuses_is_refused():
    for options in (
        {"batch_size": 0},
        {"sampler": [0], "shuffle": True},
        {"batch_sampler": [[0]], "batch_size": 2},
        {"batch_size": None, "drop_last": True},
        {"prefetch_factor": 2},
        {"persistent_workers": True},
        {"num_workers": -1},
        {"timeout": -1},
    ):
        for module in (theirs, ours):
            with pytest.raises(ValueError):
                module.DataLoader(Records(number), **options)
