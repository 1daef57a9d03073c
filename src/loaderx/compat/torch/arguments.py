"""Checks of the arguments: values that torch refuses are refused here as well."""

from __future__ import annotations

from collections.abc import Iterable

from loaderx import ArgumentError, ArgumentTypeError
from loaderx.extend import check_int


def is_iterated(dataset: object) -> bool:
    """Whether it can only be iterated, like torch's (and Hugging Face's) ``IterableDataset``."""
    # By name: torch is not imported, and its IterableDataset has a __getitem__ that raises.
    if any(kind.__name__ == "IterableDataset" for kind in type(dataset).__mro__):
        return True
    return hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")


def check_dataset(dataset: object) -> None:
    """Raises for an object that has neither records by index nor an iterator."""
    if isinstance(dataset, type):
        raise ArgumentTypeError(
            f"`dataset` is the class {dataset.__name__}; pass an object: {dataset.__name__}(...)."
        )
    if is_iterated(dataset):
        if not hasattr(dataset, "__next__"):
            return
        raise ArgumentTypeError(
            f"`dataset` is a {type(dataset).__name__}, which can be read only once. Pass an object "
            "whose __iter__ starts over, or write Dataset.from_iterable(function) of loaderx."
        )
    if not hasattr(dataset, "__getitem__"):
        raise ArgumentTypeError(
            f"`dataset` needs __getitem__ and __len__, or __iter__; got {type(dataset).__name__}."
        )


def check_order(
    dataset: object,
    batch_size: int | None,
    shuffle: bool,
    sampler: Iterable[object] | None,
    batch_sampler: Iterable[Iterable[object]] | None,
    drop_last: bool,
) -> None:
    """Raises for arguments that contradict each other."""
    if is_iterated(dataset):
        given = {"shuffle": shuffle, "sampler": sampler, "batch_sampler": batch_sampler}
        for name, value in given.items():
            if value:
                raise ArgumentError(
                    f"`{name}` needs a dataset with __getitem__, and {type(dataset).__name__} can "
                    "only be iterated. Shuffle in the dataset, or with loaderx: "
                    "Dataset.from_iterable(dataset).shuffle(window=1000)."
                )
    if sampler is not None and shuffle:
        raise ArgumentError("`sampler` and `shuffle` cannot be used together.")
    if batch_sampler is not None:
        others = {"batch_size": batch_size != 1, "shuffle": shuffle, "drop_last": drop_last}
        for name, is_given in {**others, "sampler": sampler is not None}.items():
            if is_given:
                raise ArgumentError(f"`batch_sampler` and `{name}` cannot be used together.")
    elif batch_size is None:
        if drop_last:
            raise ArgumentError("`drop_last` needs a `batch_size`.")
    else:
        check_int("batch_size", batch_size, least=1)
    if drop_last not in (True, False):
        kind = type(drop_last).__name__
        raise ArgumentTypeError(f"`drop_last` must be True or False, got {drop_last!r} ({kind}).")


def check_workers(
    num_workers: int,
    timeout: float,
    prefetch_factor: int | None,
    persistent_workers: bool | None,
) -> None:
    """Raises for options of workers with a wrong value, or without workers."""
    check_int("num_workers", num_workers, least=0)
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or timeout < 0:
        raise ArgumentError(f"`timeout` must be a number of seconds, 0 for none; got {timeout!r}.")
    if prefetch_factor is not None:
        check_int("prefetch_factor", prefetch_factor, least=1)
    if not num_workers and (prefetch_factor is not None or persistent_workers):
        name = "persistent_workers" if prefetch_factor is None else "prefetch_factor"
        raise ArgumentError(f"`{name}` needs num_workers above 0.")
