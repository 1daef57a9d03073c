"""`WindowStage`: the base of stages that users write.

How it is carried out in a chain is in `window_map`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import dataclass_transform

import numpy as np

from loaderx.chain.encoding import stage_text
from loaderx.chain.numbers import check_window
from loaderx.errors import ArgumentError, ArgumentTypeError, check_seed
from loaderx.frozen import Frozen
from loaderx.reading.rows import Record

_COMMON = ("window", "seed")  # the options of every stage
_RESERVED = ("components", "function", "input")  # `stage_text` gives these a meaning of its own


@dataclass_transform(frozen_default=True, eq_default=False, kw_only_default=True)
class WindowStage(Frozen):
    """The base of stages of your own, which work on windows of consecutive records.

    A subclass writes `map_window`, or `random_map_window` if it draws random numbers.  Its options
    are annotated fields, with or without a default, and are given by name.  They belong to saved
    states, together with the name of the class.  `Dataset.apply` puts the stage into a chain, and
    makes the dataset a stream.

    >>> from loaderx import Dataset
    >>> class SortByLength(WindowStage):
    ...     leaf: str
    ...     longest_first: bool = False
    ...
    ...     def map_window(self, records):
    ...         return sorted(
    ...             enumerate(records),
    ...             key=lambda pair: len(pair[1][self.leaf]),
    ...             reverse=self.longest_first,
    ...         )
    >>> words = Dataset.from_source([{"text": text} for text in ("ccc", "a", "bb", "dd", "e")])
    >>> [record["text"] for record in words.apply(SortByLength(leaf="text", window=3))]
    ['a', 'bb', 'ccc', 'e', 'dd']

    Options are checked in ``__post_init__(self)``.  A stage is frozen; what is expensive to make
    belongs into a `functools.cached_property`.
    """

    window: int = 2000
    """The consecutive positions of the input whose records are worked on together."""

    seed: int | None = None
    """The seed of `random_map_window`; None: that of the dataset."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = cls.__annotations__  # without `from __future__`, these are objects
        cls._fields = tuple(name for name in cls._fields if not _is_class_variable(own.get(name)))
        for name in _RESERVED:
            if name in cls._fields:
                raise ArgumentError(
                    f"an option of {cls.__name__} is called {name!r}, which saved states use for "
                    "something else. Choose another name."
                )

    def __init__(self, *values: object, **options: object) -> None:
        name, fields = type(self).__name__, self._own_fields()
        if values:
            first = next(iter(fields))
            raise ArgumentTypeError(
                f"{name} takes its options by name, such as {name}({first}={values[0]!r:.60})."
            )
        for field in fields:
            if field in options:
                self.__dict__[field] = options.pop(field)
            elif hasattr(type(self), field):
                self.__dict__[field] = getattr(type(self), field)
            else:
                raise ArgumentTypeError(f"{name} needs `{field}`: write {name}({field}=...).")
        if options:
            raise ArgumentTypeError(
                f"{name} has no option `{next(iter(options))}`; it has {', '.join(fields)}."
            )
        self.__dict__["window"] = check_window(self.window)
        self.__dict__["seed"] = None if self.seed is None else check_seed(self.seed)
        _check_methods(self)
        self.__post_init__()

    @classmethod
    def _own_fields(cls) -> list[str]:
        """The options, those of the subclass first."""
        return [name for name in cls._fields if name not in _COMMON] + list(_COMMON)

    def __repr__(self) -> str:
        return stage_text(type(self).__name__, {}, self)

    def map_window(self, records: list[Record]) -> Iterable[tuple[int, Record]]:
        """The new records of a window, as pairs (number, record) in the order of the stream.

        A record may be one of ``records`` or a new one.  The number is the index in ``records`` of
        the record that it was made of: messages name it by that, and draws of later stages depend
        on it.  Numbers may be left out, come in any order, and come several times.

        ``records`` has at least one record, and as many as the window has positions, or fewer: at
        the end of the dataset, or where a stage before this one has dropped some.  The result
        must depend on them and on the options alone.  They are not copies: leave them as they are.
        """
        raise NotImplementedError

    def random_map_window(
        self, records: list[Record], rng: np.random.Generator
    ) -> Iterable[tuple[int, Record]]:
        """The same, with random numbers, which depend on the epoch and on the first record."""
        raise NotImplementedError


def _is_class_variable(kind: object) -> bool:
    return "ClassVar" in str(kind).partition("[")[0]


def is_random(kind: type[WindowStage]) -> bool:
    """Whether it draws random numbers."""
    return kind.random_map_window is not WindowStage.random_map_window


def _check_methods(stage: WindowStage) -> None:
    kind = type(stage)
    draws, is_plain = is_random(kind), kind.map_window is not WindowStage.map_window
    if draws == is_plain:
        raise ArgumentTypeError(
            f"{kind.__name__} must have either map_window(self, records) or "
            f"random_map_window(self, records, rng); it has {'both' if draws else 'neither'}."
        )
    if stage.seed is not None and not draws:
        raise ArgumentError(f"{kind.__name__} has no random_map_window, so it takes no `seed`.")
