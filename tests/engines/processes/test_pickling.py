"""Functions and objects that are sent to workers, and what cannot be sent."""

from __future__ import annotations

import re
import sys
import threading
import traceback
import urllib.parse

import pytest

from chains import arrays
from loaderx import DataLoader, Dataset, LoaderxError
from loaderx.engines import Processes
from loaderx.engines.processes.pickling import PicklingError
from workers import run_script


def test_what_cannot_be_sent_is_named():
    lock = threading.Lock()

    def locked(record):
        with lock:
            return record

    dataset = arrays(8).map(lambda r: r).map(locked).batch(2)
    with pytest.raises(PicklingError) as caught:
        next(iter(DataLoader(dataset, engine="processes")))
    message = str(caught.value)
    assert message.startswith("map(locked) cannot be sent to worker processes: TypeError: ")
    assert "use engine='threads'" in message
    assert isinstance(caught.value, LoaderxError)


class Shy:
    """Can be pickled, but not unpickled."""

    def __reduce__(self):
        return _refuse, ()

    def __call__(self, record):
        return record


def _refuse():
    raise ImportError("there is no such module in a worker")


def test_a_worker_that_cannot_take_up_the_work_says_why():
    with pytest.raises(PicklingError) as caught:
        next(iter(DataLoader(arrays(8).map(Shy()).batch(2), engine=Processes(2))))
    assert str(caught.value) == (
        "the dataset cannot be sent to worker processes: a worker failed to build it: "
        "ImportError: there is no such module in a worker"
    )
    cause = caught.value.__cause__
    assert isinstance(cause, ImportError)
    assert [frame.name for frame in traceback.extract_tb(cause.__traceback__)] == ["_refuse"]
    assert re.fullmatch(r"\nIn worker \d \(pid \d+\)\.", cause.__notes__[0])


def test_the_cause_of_an_object_that_cannot_be_sent_is_the_original_error():
    lock = threading.Lock()
    with pytest.raises(PicklingError) as caught:
        next(iter(DataLoader(arrays(8).map(lambda r: lock and r).batch(2), engine=Processes(1))))
    assert isinstance(caught.value.__cause__, TypeError)
    assert "cannot pickle '_thread.lock' object" in str(caught.value.__cause__)


class Wordy:
    """Fails to be unpickled with more text than a worker can leave."""

    def __reduce__(self):
        return _fail_at_length, ()

    def __call__(self, record):
        return record


def _fail_at_length():
    raise ImportError("long " * 100_000)


def test_a_worker_that_cannot_start_and_has_much_to_say():
    with pytest.raises(PicklingError, match="ImportError: long long") as caught:
        next(iter(DataLoader(arrays(8).map(Wordy()).batch(2), engine=Processes(1))))
    assert str(caught.value.__cause__).startswith("ImportError: long long")


def test_cached_functions_of_a_script_go_to_workers_with_an_empty_cache():
    done = run_script(
        """
        import functools
        from loaderx import DataLoader, Dataset

        @functools.lru_cache(maxsize=7, typed=True)
        def bpe(word):
            return len(word) if len(word) < 2 else 1 + bpe(word[1:])  # itself, from its globals

        bpe.table = [1, 2]

        class Tokenizer:
            def __init__(self):
                self.made = 0

            @functools.cache
            def look_up(self, word):
                return bpe(word)

            @functools.cached_property
            def offset(self):
                self.made += 1
                return 100

            def __call__(self, record):
                assert bpe.cache_parameters() == {"maxsize": 7, "typed": True}
                assert (bpe.table, bpe.__name__) == ([1, 2], "bpe")
                found = self.look_up(record["text"]) + self.offset + self.offset
                return {"x": found, "made": self.made}

        texts = Dataset.from_source([{"text": "a" * n} for n in range(1, 9)])
        tokens = texts.map(Tokenizer()).batch(8)
        with DataLoader(tokens, engine="processes", num_workers=1) as loader:
            for batch in loader:
                print(batch["x"].tolist(), batch["made"].tolist())
        """
    )
    assert done.stdout.split("\n")[:1] == [
        "[201, 202, 203, 204, 205, 206, 207, 208] [1, 1, 1, 1, 1, 1, 1, 1]"
    ], done.stderr


def test_a_cached_function_of_a_module_is_imported_there():
    shared = urllib.parse.urlsplit

    def same(x):
        return shared is sys.modules["urllib.parse"].urlsplit

    assert hasattr(shared, "cache_info")
    with DataLoader(Dataset.range(2).map(same).batch(2), engine=Processes(1)) as loader:
        assert next(iter(loader)).tolist() == [True, True]


def test_torchs_dataset_classes_are_not_imported_in_workers():
    """In the worker of this script there is no such module."""
    done = run_script(
        """
        import sys, textwrap, types
        import cloudpickle
        import numpy as np
        from loaderx import DataLoader, Dataset

        NAME = "torch.utils.data.dataset"
        TEXT = '''
            class Base:
                def __add__(self, other):
                    return Both([self, other])

            class Both(Base):
                def __init__(self, parts):
                    self.parts = parts

                def __len__(self):
                    return sum(map(len, self.parts))

                def __getitem__(self, index):
                    part, row = divmod(index, len(self.parts[0]))
                    return self.parts[part][row]
        '''
        module = sys.modules[NAME] = types.ModuleType(NAME)
        exec(textwrap.dedent(TEXT), vars(module))

        class Squares(module.Base):
            def __len__(self):
                return 4

            def __getitem__(self, index):
                return np.array(index ** 2)

        def is_imported(batch):
            return batch, NAME in sys.modules

        dataset = Dataset.from_source(Squares() + Squares()).batch(4).map(is_imported)
        with DataLoader(dataset, engine="processes", num_workers=1) as loader:
            for squares, there in loader:
                print(squares.tolist(), there)
        print(cloudpickle.list_registry_pickle_by_value())
        """
    )
    line = "[0, 1, 4, 9] False\n"
    assert done.stdout == 2 * line + "set()\n", done.stderr
