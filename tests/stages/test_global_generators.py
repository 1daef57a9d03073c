"""Old code that draws from global generators: the same numbers on every engine."""

# ruff: noqa: NPY002 (global generators are the subject)

from __future__ import annotations

import importlib
import random
import sys
import threading
import types

import cloudpickle
import numpy as np
import pytest

from chains import arrays
from loaderx import ArgumentError, ChainError, DataLoader, Dataset, LoaderxWarning, RecordError
from loaderx.chain.global_generators import GlobalDraws

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # else workers would import pytest


def augment(record):
    """As people have written it for years: NumPy's and Python's global generators."""
    noise = np.random.normal() if np.random.random() < 0.5 else random.gauss(0, 1)
    return {"x": record["x"], "y": np.array([noise, random.random(), np.random.rand()])}


def rows(batches):
    return [tuple(row) for batch in batches for row in np.c_[batch["x"], batch["y"]].tolist()]


CHAINS = {
    "by index": lambda: arrays(24).shuffle(5).random_map(augment, seed_globals=True).batch(3),
    "stream": lambda: (
        arrays(24).filter(lambda r: r["x"] % 4 > 0).random_map(augment, seed_globals=True).batch(3)
    ),
    "unbatched": lambda: (
        arrays(24).batch(4).unbatch().random_map(augment, seed_globals=True).batch(3)
    ),
}


@pytest.mark.parametrize("kind", CHAINS)
def test_the_draws_are_the_same_on_every_engine(kind):
    expected = rows(CHAINS[kind]())
    assert len({row[1:] for row in expected}) == len(expected)  # each record has its own
    for engine, workers in (("inline", 0), ("threads", 1), ("threads", 3), ("processes", 2)):
        with DataLoader(CHAINS[kind](), engine=engine, num_workers=workers) as loader:
            assert rows(loader) == expected
    with DataLoader(CHAINS[kind](), engine="auto") as loader:
        assert rows(loader) == expected


@pytest.mark.parametrize("kind", CHAINS)
def test_the_draws_are_the_same_from_every_state(kind):
    loader = DataLoader(CHAINS[kind](), engine="inline")
    expected, iterator, states = rows(loader), iter(loader.epoch(0)), []
    while True:
        states.append(iterator.get_state())
        if next(iterator, None) is None:
            break
    for step, state in enumerate(states):
        iterator.set_state(state)
        assert rows(iterator) == expected[3 * step :]


def test_a_draw_depends_on_seed_stage_epoch_and_record():
    def draws(dataset):
        return {int(r["x"]): tuple(r["y"].tolist()) for r in dataset}

    base = arrays(12)
    once = draws(base.random_map(augment, seed_globals=True))
    assert draws(base.map(dict).random_map(augment, seed_globals=True)) == once
    assert draws(base[::-1].random_map(augment, seed_globals=True)) == once
    assert draws(base[5:7].random_map(augment, seed_globals=True)) == {i: once[i] for i in (5, 6)}
    other = draws(base.random_map(augment, seed_globals=True, seed=1))
    twice = list(base.random_map(augment, seed_globals=True).repeat(2))
    assert draws(twice[:12]) == once
    second = draws(base.random_keys().random_map(augment, seed_globals=True))  # of two stages
    for different in (other, second, draws(twice[12:])):
        assert not set(different.values()) & set(once.values())


def test_the_generators_do_not_share_their_draws():
    def both(_):
        return {"x": np.random.random(), "y": random.random()}

    found = list(Dataset.range(200).random_map(both, seed_globals=True))
    x, y = (np.array([float(r[name]) for r in found]) for name in "xy")
    assert abs(np.corrcoef(x, y)[0, 1]) < 0.25
    assert abs(x.mean() - 0.5) < 0.1
    assert abs(y.mean() - 0.5) < 0.1


def own_draws():
    return [random.random(), random.gauss(0, 1), float(np.random.rand()), float(np.random.normal())]


@pytest.mark.parametrize("engine", ["inline", "threads"])
def test_the_callers_own_generators_are_left_as_they_were(engine):
    def fail(record):
        if record["x"] == 7:
            raise ValueError(np.random.rand())
        return augment(record)

    def start():
        random.seed(3)
        np.random.seed(3)
        return own_draws()  # a gaussian of each pair waits for its turn now

    start()
    expected = own_draws()
    start()
    chain = arrays(12).random_map(fail, seed_globals=True)
    with DataLoader(chain.batch(2), engine=engine) as loader:
        iterator = iter(loader)
        with pytest.raises(RecordError, match="record 7: ValueError: 0.") as first:
            list(iterator)
        with pytest.raises(RecordError) as second:
            next(iterator)
        assert str(first.value) == str(second.value)
    list(chain.on_error("replace").batch(5))
    assert own_draws() == expected


class FakeTorch(types.ModuleType):
    """As much of torch as is asked for: a default generator with a state."""

    class Generator:
        def __init__(self):
            self.random = random.Random(0)

        def manual_seed(self, seed):
            assert 0 <= seed < 1 << 63
            self.random.seed(seed)

        def get_state(self):
            return self.random.getstate()

        def set_state(self, state):
            self.random.setstate(state)

    def __init__(self):
        super().__init__("torch")
        self.default_generator = self.Generator()

    def rand(self):
        return self.default_generator.random.random()


def test_torch_is_seeded_where_it_is_imported(monkeypatch):
    def draw(i):
        return sys.modules["torch"].rand()

    torch = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    before = torch.default_generator.get_state()
    chain = Dataset.range(9).random_map(draw, seed_globals=True).batch(2)
    expected = [batch.tolist() for batch in chain]
    assert len({x for batch in expected for x in batch}) == 9
    for engine in ("inline", "threads"):
        assert [b.tolist() for b in DataLoader(chain, engine=engine)] == expected
    assert torch.default_generator.get_state() == before


def test_real_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed here")
    chain = Dataset.range(9).random_map(lambda i: torch.rand(2).numpy(), seed_globals=True).batch(2)
    expected = [batch.tolist() for batch in chain]
    with DataLoader(chain, engine="processes", num_workers=2) as loader:
        assert [batch.tolist() for batch in loader] == expected


def test_an_old_dataset_that_draws_while_it_reads():
    class Old:
        def __len__(self):
            return 10

        def __getitem__(self, index):
            return {"x": index, "y": np.random.rand(3)}

    old = Old()
    chain = Dataset.range(len(old)).random_map(old.__getitem__, seed_globals=True).batch(4)
    expected = rows(chain)
    with DataLoader(chain, engine="processes", num_workers=2) as loader:
        assert rows(loader) == expected


def test_a_transform_object_has_its_map_called():
    class Flip:
        def map(self, element):
            return element * (1 if np.random.rand() < 0.5 else -1)

    chain = Dataset.range(1, 20).random_map(Flip(), seed_globals=True)
    assert list(chain) == list(chain)
    assert "random_map(Flip, seed_globals=True)" in repr(chain)


def test_threads_take_turns():
    inside, most = [0], [0]
    lock = threading.Lock()

    def count(x):
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        x = x + np.random.rand()
        with lock:
            inside[0] -= 1
        return x

    chain = Dataset.range(64).random_map(count, seed_globals=True).batch(4)
    assert len(list(DataLoader(chain, engine="threads", num_workers=4))) == 16
    assert most == [1]


WARNING = (
    "functions of this dataset draw from the global generator of {}, which differs in every worker "
    "process and every run: the data cannot be reproduced."
)


@pytest.mark.parametrize(("module", "name"), [("np.random", "NumPy"), ("random", "random")])
def test_worker_processes_warn_once_of_draws_that_cannot_be_had_again(module, name):
    def draw(x):
        return x + (np.random.rand() if module == "np.random" else random.random())

    chain = Dataset.range(64).map(draw).batch(2)
    with DataLoader(chain, engine="processes", num_workers=2) as loader:
        with pytest.warns(LoaderxWarning) as caught:
            assert len(list(loader)) == 32
        (warning,) = caught
        assert str(warning.message).startswith(WARNING.format(name))
        assert ".random_map(f, seed_globals=True)" in str(warning.message)


def test_worker_processes_do_not_warn_of_draws_that_belong_to_their_record():
    def rng(x, rng):
        return x + rng.random() + np.random.default_rng(0).random()

    def own(x):
        return x + random.random() + np.random.rand()

    chain = Dataset.range(64).random_map(rng).random_map(own, seed_globals=True).batch(2)
    with DataLoader(chain, engine="processes", num_workers=2) as loader:
        assert len(list(loader)) == 32  # a warning would be an error here


def _module_that_draws(folder, monkeypatch):
    """The name of a module that uses NumPy's global generator while it is imported, as jax does."""
    (folder / "draws_on_import.py").write_text("import numpy.random\nnumpy.random.rand()\n")
    monkeypatch.syspath_prepend(folder)
    return "draws_on_import"


def test_an_import_inside_a_function_is_no_draw_of_the_function(tmp_path, monkeypatch):
    module = _module_that_draws(tmp_path, monkeypatch)

    def late(x):
        if x >= 6:  # not in the first step
            importlib.import_module(module)
        return x

    with DataLoader(Dataset.range(64).map(late).batch(2), engine="processes", num_workers=1) as all:
        assert len(list(all)) == 32  # a warning would be an error here


def test_a_function_that_imports_and_draws_is_still_noticed(tmp_path, monkeypatch):
    module = _module_that_draws(tmp_path, monkeypatch)

    def both(x):
        importlib.import_module(module)
        return x + np.random.rand()

    chain = Dataset.range(64).map(both).batch(2)
    with (
        pytest.warns(LoaderxWarning, match="draw from the global generator of NumPy"),
        DataLoader(chain, engine="processes", num_workers=1) as loader,
    ):
        assert len(list(loader)) == 32


def test_draws_of_dask_itself_are_no_draws_of_the_functions(monkeypatch):
    """Where its package is imported, its threads may draw from `random` at any time."""
    monkeypatch.setitem(sys.modules, "distributed", types.ModuleType("distributed"))
    draws = GlobalDraws()
    random.random()
    assert draws.notice() is None
    np.random.rand()
    assert draws.notice().startswith(WARNING.format("NumPy"))


def test_a_module_that_another_thread_imports_is_not_asked(monkeypatch):
    for module in ("numpy.random", "random"):
        monkeypatch.setitem(sys.modules, module, types.ModuleType(module))  # nothing in it yet
    assert GlobalDraws().notice() is None


def test_it_is_part_of_a_state_and_refused_for_batches():
    def chain_of(dataset):
        return iter(DataLoader(dataset.batch(2), engine="inline")).get_state()["chain"][2]

    def plain(record, rng):
        return record

    assert chain_of(arrays(4).random_map(plain)) == "random_map(function='plain', seed=0)"
    seeded = chain_of(arrays(4).random_map(augment, seed_globals=True))
    assert seeded == "random_map(function='augment', seed=0, seed_globals=True)"
    with pytest.raises(ChainError, match=r"seed_globals=True after batch: .* before \.batch"):
        arrays(4).batch(2).random_map(augment, seed_globals=True)
    with pytest.raises(ArgumentError, match="`seed_globals` and `batched` cannot be used together"):
        arrays(4).random_map(augment, seed_globals=True, batched=True)
