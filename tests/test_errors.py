"""Errors: which record, stage and step failed, also where the exception cannot be shown."""

from __future__ import annotations

import pytest

from chains import arrays
from failing import load
from loaderx import ArgumentError, DataLoader, Dataset, RecordError
from loaderx.errors import bytes_setting

# Half of the records fail here; where the warning itself is meant, it is caught.
pytestmark = pytest.mark.filterwarnings("ignore:.*records have failed")


def test_a_failure_names_the_record_the_stage_and_the_step():
    def fail(record):
        if record["x"] == 17:
            raise ValueError("bad record")
        return record

    for engine in ("inline", "threads"):
        dataset = arrays(40).filter(lambda r: r["x"] > 3).map(fail).batch(4)
        iterator = iter(DataLoader(dataset, engine=engine))
        seen = []
        with pytest.raises(RecordError) as caught:
            for batch in iterator:
                seen += batch["x"].tolist()
        assert caught.value.index == 17
        assert caught.value.stage == "map(fail)"
        assert str(caught.value).endswith("map(fail) failed on record 17: ValueError: bad record")
        step = caught.value.step
        assert seen == list(range(4, 4 + 4 * step))
        with pytest.raises(RecordError):  # and it fails there again
            next(iterator)
        assert iterator.step == step


class NoText(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class NoTextAtAll(Exception):
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__

    @property
    def args(self):
        raise RuntimeError("no arguments")


class WrongText(Exception):
    def __str__(self):
        return 7  # noqa: PLE0307


@pytest.mark.parametrize("engine", ["inline", "threads", "processes"])
def test_an_exception_that_cannot_be_shown_keeps_record_and_stage(engine):
    said = {
        NoText: "NoText (its message cannot be shown: str() raised RuntimeError)",
        NoTextAtAll: "NoTextAtAll (its message cannot be shown: str() raised RuntimeError)",
        WrongText: "WrongText (its message cannot be shown: str() raised TypeError)",
    }
    kinds = list(said)

    def odd(record):
        if record["x"] >= 6:
            raise kinds[int(record["x"]) - 6]()
        return record

    with load(arrays(9).map(odd).batch(1), engine) as loader:
        iterator = iter(loader)
        for number, kind in enumerate(kinds, start=6):
            iterator.seek(number)
            with pytest.raises(RecordError) as caught:
                next(iterator)
            error = caught.value
            assert (error.index, error.stage, error.step) == (number, "map(odd)", number)
            assert str(error) == f"step {number}: map(odd) failed on record {number}: {said[kind]}"
            assert type(error.__cause__).__name__ in (kind.__name__, "LoaderxError")


def test_a_source_a_stream_and_a_collate_function_may_fail_with_such_an_exception():
    class Source:
        def __len__(self):
            return 3

        def __getitem__(self, index):
            raise NoText

    def fail(_):
        raise NoText

    def broken():
        yield 1
        raise NoText

    for dataset in (
        Dataset.from_source(Source()),
        Dataset.range(3).filter(fail),
        Dataset.range(3).batch(2, collate_fn=fail),
        Dataset.range(3).batch(2).map(fail),
        Dataset.range(3).filter(bool).batch(2).map(fail),
        Dataset.from_iterable(broken),
    ):
        with pytest.raises(RecordError, match=r"NoText \(its message cannot be shown"):
            list(dataset)


def test_map_returning_nothing():
    with pytest.raises(RecordError, match="forget its `return`") as caught:
        list(arrays(4).map(lambda r: None).batch(2))
    assert caught.value.index == 0
    with pytest.raises(RecordError, match="forget its `return`"):
        list(arrays(4).batch(2).map(lambda r: None))


def test_errors_in_batch_functions_name_the_stage_and_step():
    def broken(batch):
        raise ZeroDivisionError

    with pytest.raises(RecordError, match=r"step 0: map\(broken\) failed on a batch: ZeroDivision"):
        list(arrays(4).batch(2).map(broken))


def test_stop_iteration_in_a_function_is_a_failure():
    def broken(x):
        return next(iter(())) if x == 5 else x

    with pytest.raises(RecordError, match="failed on record 5: StopIteration") as caught:
        list(Dataset.range(12).map(broken).batch(4))
    assert caught.value.index == 5


BYTES = "LOADERX_TEST_BYTES"


@pytest.mark.parametrize(("given", "expected"), [("", 1 << 30), ("7", 7), ("0", 0)])
def test_bytes_in_an_environment_variable(given, expected, monkeypatch):
    monkeypatch.setenv(BYTES, given)
    assert bytes_setting(BYTES, 1 << 30, least=0) == expected


@pytest.mark.parametrize("given", ["0", "-3", "1 GB", "1e9"])
def test_bytes_that_are_no_number(given, monkeypatch):
    monkeypatch.setenv(BYTES, given)
    with pytest.raises(ArgumentError) as caught:
        bytes_setting(BYTES, 1 << 30)
    assert str(caught.value) == (
        f"LOADERX_TEST_BYTES is {given!r}, and must be a number of bytes, at least 1: 1073741824 "
        "is 1 GiB, the default."
    )
