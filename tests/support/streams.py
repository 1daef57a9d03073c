"""Functions for tests of streams.  Worker processes import this module: it must stay light."""

from __future__ import annotations

import itertools

from loaderx import Dataset


def head(stream, count):
    return list(itertools.islice(iter(stream), count))


def numbers(stream):
    return [int(x) for x in stream]


def even(x):
    return x % 2 == 0


def count_up():
    yield from range(10)


STREAM = Dataset.range(100).filter(even)


def everything(record):
    return True
