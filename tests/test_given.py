"""What is opened when it is first needed stays behind when its object goes to a worker process."""

from __future__ import annotations

import sqlite3
import threading
from functools import partial

import numpy as np
import pytest

from loaderx import DataLoader, Dataset, LoaderxError
from loaderx.engines import Processes


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


def test_what_never_could_be_sent_is_an_error_that_says_what_to_do(numbers):
    class Locked(Lazy):
        def __init__(self, path):
            super().__init__(path)
            self.lock = threading.Lock()

    dataset = Dataset.from_source(Locked(numbers))
    dataset[0]
    with pytest.raises(
        LoaderxError,
        match=r"from_source\(Locked, 40 records\) cannot be sent to worker processes: TypeError: "
        r"cannot pickle .*leave it out in __getstate__",
    ):
        read(dataset)


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
