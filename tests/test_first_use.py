"""What is opened when it is first needed stays behind when its object goes to a worker process."""

from __future__ import annotations

import functools
import re
import sqlite3
import sys
import threading
from functools import partial

import cloudpickle
import numpy as np
import pytest

from loaderx import DataLoader, Dataset, LoaderxError, RecordError
from loaderx.engines import Processes

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # else workers would import pytest


@pytest.fixture
def numbers(tmp_path):
    path = tmp_path / "numbers"
    np.arange(40, dtype=np.int64).tofile(path)
    return path


class Lazy:
    """Opens its file when it is first read."""

    def __init__(self, path):
        self.path, self.file, self.first = path, None, 0

    def __len__(self):
        return 40

    def __getitem__(self, i):
        if self.file is None:
            self.file = open(self.path, "rb")  # noqa: SIM115 (closed when it is dropped)
        self.file.seek(8 * i)
        return {"x": np.frombuffer(self.file.read(8), np.int64)[0] + self.first}

    def __del__(self):
        if self.__dict__.get("file"):
            self.file.close()


class OpenedByLen(Lazy):
    def __len__(self):
        self[0]
        return 40


class Keyed(Lazy):
    """Keeps its files in a dict, one for each thread."""

    def __init__(self, path):
        super().__init__(path)
        self.files = {}

    def __getitem__(self, i):
        me = threading.get_ident()
        if me not in self.files:
            self.files[me] = open(self.path, "rb")  # noqa: SIM115 (closed when it is dropped)
        file = self.files[me]
        file.seek(8 * i)
        return {"x": np.frombuffer(file.read(8), np.int64)[0]}

    def __del__(self):
        for file in self.__dict__.get("files", {}).values():
            file.close()


class Added(Lazy):
    """Has no attribute for its file before it is opened."""

    def __init__(self, path):
        super().__init__(path)
        del self.file

    def __getitem__(self, i):
        if not hasattr(self, "file"):
            self.file = None
        return super().__getitem__(i)


class Part:
    """Part of another dataset, as torch has it."""

    def __init__(self, dataset):
        self.parts = [dataset]

    def __len__(self):
        return len(self.parts[0])

    def __getitem__(self, i):
        return self.parts[0][i]


def read(dataset):
    with DataLoader(dataset.batch(8), engine=Processes(1)) as loader:
        return np.concatenate([batch["x"] for batch in loader]).tolist()


@pytest.mark.parametrize("make", [Lazy, OpenedByLen, Keyed, Added, lambda path: Part(Lazy(path))])
def test_a_source_that_has_opened_its_file_goes_to_processes(make, numbers):
    source = make(numbers)
    dataset = Dataset.from_source(source)
    assert dataset[3]["x"] == 3  # it is open now
    assert read(dataset) == list(range(40))
    assert source[4]["x"] == 4  # and stays so here


def test_a_connection(tmp_path):
    path = str(tmp_path / "numbers.db")
    with sqlite3.connect(path) as made:
        made.execute("create table numbers (x integer)")
        made.executemany("insert into numbers values (?)", [(i,) for i in range(40)])
    made.close()

    class Table:
        connection = None  # of the class: the object has no such attribute yet

        def __len__(self):
            return self.ask("select count(*) from numbers")

        def __getitem__(self, i):
            return {"x": np.int64(self.ask(f"select x from numbers where rowid = {i + 1}"))}

        def ask(self, what):
            if self.connection is None:
                self.connection = sqlite3.connect(path)
            return self.connection.execute(what).fetchone()[0]

    table = Table()
    assert read(Dataset.from_source(table)) == list(range(40))
    table.connection.close()


def test_a_function_that_has_opened_its_file_goes_to_processes(numbers):
    class Look:
        def __init__(self, path):
            self.table = Lazy(path)

        def __call__(self, record):
            return self.table[int(record["x"])]

    def closure(look):
        return lambda record: look(record)

    indices = Dataset.from_arrays(x=np.arange(40))
    for take in (lambda look: look, closure, lambda look: look.__call__, partial):
        dataset = indices.map(take(Look(numbers)))
        assert dataset[1]["x"] == 1
        assert read(dataset) == list(range(40))


def test_what_was_changed_since_and_can_be_sent_is_sent(numbers):
    source = Lazy(numbers)
    dataset = Dataset.from_source(source)
    dataset[0]
    source.first = 100
    assert read(dataset) == list(range(100, 140))


def test_getstate_has_the_last_word(numbers):
    class Told(Lazy):
        def __getstate__(self):
            return {**self.__dict__, "file": None, "first": 7}

    dataset = Dataset.from_source(Told(numbers))
    dataset[0]
    assert read(dataset) == list(range(7, 47))


def refused(dataset):
    """What the error says after the exception of pickle."""
    with pytest.raises(
        LoaderxError, match="cannot be sent to worker processes: TypeError: "
    ) as all:
        read(dataset)
    # Python 3.12 speaks of instances where 3.11 has an object.
    return re.split(r" (?:object|instances)\. ", str(all.value), maxsplit=1)[1]


class Table:
    """Opens its database when it is first read."""

    def __init__(self, path=":memory:"):
        self.path, self.database = path, None

    def __len__(self):
        return 40

    def __getitem__(self, i):
        if self.database is None:
            self.database = sqlite3.connect(self.path)
        return {"x": i}

    def __del__(self):
        if self.database is not None:
            self.database.close()


def test_what_was_open_before_it_was_given_is_named_and_what_to_write():
    source = Table()
    source[0]
    advice = (
        "`Table.database` (sqlite3.Connection) was set already when from_source() got the object. "
        "Give a fresh object that makes it when it is first needed, or write in Table: "
        "`def __getstate__(self): return {**self.__dict__, 'database': None}`."
    )
    assert refused(Dataset.from_source(source)) == advice
    assert refused(Dataset.from_source(Part(source))) == advice  # wherever it is
    safe = Dataset.from_source(source, thread_safe=True)
    assert refused(safe) == f"{advice} Or use engine='threads'."


def test_what_never_could_be_sent_is_an_error_that_says_what_to_do(numbers):
    class Locked(Lazy):
        def __init__(self, path):
            super().__init__(path)
            self.lock = threading.Lock()

    dataset = Dataset.from_source(Locked(numbers))
    dataset[0]
    assert refused(dataset).startswith(
        "`Locked.lock` (_thread.lock) was set already when from_source() got the object. "
    )
    mapped = Dataset.from_source([{"x": 1}]).map(partial(lambda locked, x: x, Locked(numbers)))
    assert refused(mapped).startswith(
        "`Locked.lock` (_thread.lock) was set already when the dataset was made. "
    )


def test_what_the_standard_library_and_packages_hold_inside_is_not_blamed():
    class Waits(Table):
        def __init__(self):
            super().__init__()
            self.event = threading.Event()

    assert refused(Dataset.from_source(Waits())).startswith("`Waits.event` (threading.Event) was ")


def test_a_getstate_that_keeps_too_much_is_named():
    class Told(Table):
        def __getstate__(self):
            return dict(self.__dict__)

    source = Told()
    source[0]
    assert refused(Dataset.from_source(source)) == (
        "`Told.database` (sqlite3.Connection) must be left out in Told.__getstate__."
    )


def test_what_a_function_uses_is_named_and_init_is_not_talked_of():
    lock = threading.Lock()

    def locked(record):
        with lock:
            return record

    expected = (
        "`locked` uses `lock` (_thread.lock). Let a function with @functools.cache make it, and "
        "call that one where it is needed: then each worker makes its own. Or use engine='threads'."
    )
    numbers = Dataset.from_arrays(x=np.arange(8))
    assert refused(numbers.map(locked)) == expected
    world = {"lock": lock}
    exec("def locked(record):\n    with lock:\n        return record", world)
    assert refused(numbers.map(world["locked"])) == expected


def test_what_a_class_holds_is_named():
    lock = threading.Lock()

    class Shared(Table):
        lock = threading.Lock()

    class Method(Table):
        @property
        def locked(self):
            return lock.locked()

    assert refused(Dataset.from_source(Shared())) == (
        "`Shared.lock` (_thread.lock) belongs to the class. Make it in the object, when it is "
        "first needed."
    )
    assert refused(Dataset.from_source(Method())).startswith("`locked` uses `lock` (_thread.lock).")


def test_the_advice_for_functions_works():
    @functools.cache
    def lock():
        return threading.Lock()

    def locked(record):
        with lock():
            return record

    dataset = Dataset.from_arrays(x=np.arange(8)).map(locked)
    assert dataset[3]["x"] == 3  # it has been made here
    assert read(dataset) == list(range(8))


def test_a_worker_that_misses_what_was_set_back_is_told_why(numbers):
    class Flagged(Table):
        """Knows by a flag that it is open, and not by what it has opened."""

        is_open = False

        def __getitem__(self, i):
            if not self.is_open:
                self.database, self.is_open = sqlite3.connect(self.path), True
            return {"x": self.database.execute(f"select {i}").fetchone()[0] + 1 / (i - 5)}

    dataset = Dataset.from_source(Flagged())
    fresh = Dataset.from_source(Flagged())
    dataset[0]
    with pytest.raises(RecordError, match="'NoneType' object has no attribute 'execute'") as caught:
        read(dataset)
    assert caught.value.__notes__ == [
        "`Flagged.database` could not be sent to the worker and was set back to what it was before "
        "the first use, None. Write in Flagged what a worker is to get: `def __getstate__(self): "
        "return {**self.__dict__, 'database': None}`."
    ]
    loader = DataLoader(dataset, engine=Processes(1))
    with loader, pytest.raises(RecordError) as single:  # a record without a batch
        next(iter(loader))
    assert single.value.__notes__ == caught.value.__notes__
    with pytest.raises(RecordError, match="division by zero") as caught:  # another matter
        read(fresh)
    assert not hasattr(caught.value, "__notes__")


def test_a_large_source_is_not_copied():
    class Large:
        def __init__(self):
            self.rows = [np.full(1000, i) for i in range(100)]

        def __len__(self):
            return 100

        def __getitem__(self, i):
            return {"x": self.rows[i][0]}

        def __copy__(self):
            raise AssertionError("copied")

        def __deepcopy__(self, memo):
            raise AssertionError("copied")

        def __reduce_ex__(self, protocol):
            raise AssertionError("pickled")

    assert Dataset.from_source(Large())[7]["x"] == 7
