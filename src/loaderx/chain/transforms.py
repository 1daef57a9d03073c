"""The per-element stages, each for a list of records and for a stacked batch.

A transform may need something: random keys or positions of its rows, or memory to write to.  It
says so in ``needs``, and gets it as ``extra``.  Failures leave through ``fail(i, error)``, which
knows which record row i is; a whole batch fails as row None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from loaderx.chain.functions import Function
from loaderx.errors import ChainError, LoaderxError, StackError
from loaderx.frozen import Frozen
from loaderx.memory import aligned
from loaderx.reading.error_text import USER_ERRORS
from loaderx.reading.operators import Gather
from loaderx.rng import BatchGenerator, Keys, key_words, record_generators
from loaderx.tree import ArraySpec, Tree

_NONE = type(None)

Needs: TypeAlias = Literal["nothing", "keys", "positions", "memory"]
Fail: TypeAlias = Callable[[int | None, BaseException], LoaderxError]


class Transform(Frozen):
    """The change that a stage makes to an element, and the facts about it that the stage needs."""

    needs: ClassVar[Needs] = "nothing"
    goes_singly: ClassVar[bool] = True  # it has `on_each`
    takes_either: ClassVar[bool] = False  # columns are as good as single records
    is_cheap: ClassVar[bool] = False  # it is no reason to share the rows of a batch
    named: ClassVar[str] = "function"  # the field that names the stage in a saved state

    def on_records(self, records: list[object], extra: Any, fail: Fail) -> list[object]:
        raise NotImplementedError

    def on_batch(self, batch: Tree, extra: Any, fail: Fail) -> Tree:
        raise NotImplementedError

    def on_each(self, records: Iterator[object], extra: Any, fail: Fail) -> Iterator[object]:
        """`on_records` for records that come one by one."""
        raise NotImplementedError

    def spec(self, below: Tree, rows: tuple[int | None, ...]) -> Tree | None:
        """The spec of an element; ``rows`` is the first axis of batches.  None if not known."""
        return None

    @property
    def options(self) -> dict[str, object]:
        """The options that change the result, besides the function."""
        return {}

    def for_batches_of(self, rows: int | None) -> Transform:
        """The transform for batches of ``rows`` rows, of which the last one may be short."""
        return self

    def over_gather(self, gather: Gather) -> Gather | None:
        """``gather`` with the transform on top; None if a batch needs more than that."""
        return None


class Map(Transform):
    """``f(element)``"""

    function: Function

    def on_records(self, records: list[object], extra: Any, fail: Fail) -> list[object]:
        return each(map(self.function.call, records), len(records), fail)

    def on_batch(self, batch: Tree, extra: Any, fail: Fail) -> Tree:
        return whole(fail, self.function.call, batch)

    def on_each(self, records: Iterator[object], extra: Any, fail: Fail) -> Iterator[object]:
        call, number = self.function.call, -1
        for record in records:
            number += 1
            try:
                made = call(record)
            except StopIteration:
                raise fail(number, _stopped()) from None
            except USER_ERRORS as error:
                raise fail(number, error) from error
            if made is None:
                raise fail(number, _nothing())
            yield made


class RandomMap(Transform):
    """``f(element, rng)``"""

    function: Function
    needs = "keys"
    full: int | None = None  # rows of a batch that is not short; None: that varies

    def on_records(self, records: list[object], extra: Keys, fail: Fail) -> list[object]:
        results = map(self.function.call, records, record_generators(extra))
        return each(results, len(records), fail)

    def on_batch(self, batch: Tree, extra: Keys, fail: Fail) -> Tree:
        return whole(fail, self.function.call, batch, BatchGenerator(extra, self.full))

    def on_each(self, records: Iterator[object], extra: Keys, fail: Fail) -> Iterator[object]:
        return each_with(
            self.function.call, zip(records, record_generators(extra), strict=True), fail
        )

    def for_batches_of(self, rows: int | None) -> Transform:
        return self.replace(full=rows)


class MapWithIndex(Transform):
    """``f(index, element)``"""

    function: Function
    needs = "positions"

    def on_records(self, records: list[object], extra: Any, fail: Fail) -> list[object]:
        return each(map(self.function.call, extra.tolist(), records), len(records), fail)

    def on_batch(self, batch: Tree, extra: Any, fail: Fail) -> Tree:
        return whole(fail, self.function.call, int(extra), batch)

    def on_each(self, records: Iterator[object], extra: Any, fail: Fail) -> Iterator[object]:
        return each_with(self.function.call, zip(extra.tolist(), records, strict=True), fail)


class RandomKeys(Transform):
    """Adds key data for `jax.random.wrap_key_data`: uint32[2] per record."""

    name: str

    needs = "keys"
    takes_either = True  # keys are added to records and to columns alike
    named = "name"

    def on_records(self, records: list[object], extra: Keys, fail: Fail) -> list[object]:
        data = self._data(extra)
        return [self._add(record, key) for record, key in zip(records, data, strict=True)]

    def on_batch(self, batch: Tree, extra: Keys, fail: Fail) -> Tree:
        return self._add(batch, aligned(self._data(extra)))

    def on_each(self, records: Iterator[object], extra: Keys, fail: Fail) -> Iterator[object]:
        return map(self._add, records, self._data(extra))

    def spec(self, below: Tree, rows: tuple[int | None, ...]) -> Tree | None:
        if not isinstance(below, dict):
            return None
        return {**below, self.name: ArraySpec((*rows, 2), np.dtype(np.uint32))}

    def _data(self, keys: Keys) -> Any:
        return key_words(keys, 1).view(np.uint32)

    def _add(self, element: object, data: Any) -> Any:
        if not isinstance(element, dict):
            raise ChainError(
                f"random_keys adds a leaf {self.name!r}, so elements must be dicts; "
                f"this one is {type(element).__name__}. Make a dict of it in .map() first."
            )
        if self.name in element:
            raise ChainError(
                f"random_keys: elements have a leaf {self.name!r} already; choose another `name`."
            )
        return {**element, self.name: data}


def each(results: Iterator[object], count: int, fail: Fail) -> list[object]:
    """All results of a function of one record."""
    out: list[object] = []
    try:
        out.extend(results)  # after a failure, its length is the number of the failed record
    except USER_ERRORS as error:
        raise fail(len(out), error) from error
    if len(out) != count:  # `map` took a StopIteration of the function for its own end
        raise fail(len(out), _stopped())
    if _NONE in set(map(type, out)):
        raise fail(next(i for i, record in enumerate(out) if record is None), _nothing())
    return out


def each_with(
    call: Callable[..., Any], arguments: Iterator[tuple[Any, ...]], fail: Fail
) -> Iterator[object]:
    """The results of a function of one record and something else, one by one."""
    for number, given in enumerate(arguments):
        try:
            made = call(*given)
        except StopIteration:
            raise fail(number, _stopped()) from None
        except USER_ERRORS as error:
            raise fail(number, error) from error
        if made is None:
            raise fail(number, _nothing())
        yield made


def whole(fail: Fail, call: Callable[..., Any], *arguments: Any) -> Tree:
    """The result of a function of a batch."""
    try:
        out = call(*arguments)
    except USER_ERRORS as error:
        raise fail(None, error) from error
    if out is None:
        raise fail(None, _nothing())
    return out


def _stopped() -> StopIteration:
    return StopIteration("raised by the function")


def _nothing() -> StackError:
    return StackError("it returned None; did it forget its `return`?")
