"""Damaged states: refused with a `LoaderxError`, or what follows is a part of the true stream.

A case takes a true state of one of the datasets below, changes it as a broken file or a careless
hand would, and gives it to a fresh iterator (`fuzz.py` counts how that went).  What an accepted
state gives is compared: with what followed the true state, if it names the same position; with the
rows of each lane, of which it must be a stretch without gaps, where those can be known; and always
with the set of rows that the dataset has.  An endless stream must go on, a finite one must end.
"""

from __future__ import annotations

import copy
import json
import random
import warnings
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any

import numpy as np

from inside import node_of
from loaderx import DataLoader, Dataset, LoaderxError, merge_states

AHEAD = 5  # batches that are read after a state
STEPS = 24  # true states are taken before the first so many steps
LONG = 60  # steps of the true stream that are known


class Stateful:
    """An iterable that knows its own position."""

    def __init__(self, count: int) -> None:
        self.count, self.at = count, 0

    def __iter__(self) -> Iterator[int]:
        while self.at < self.count:
            self.at += 1
            yield self.at - 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]
        if not 0 <= self.at <= self.count:
            raise ValueError(f"no position {self.at}")


def numbers() -> Iterator[int]:
    yield from range(70)


def even(x: Any) -> bool:
    return bool(x % 2 == 0)


def some(x: Any) -> list[Any]:
    return [x] * (int(x) % 3)


def fails(x: Any) -> Any:
    if x % 7 == 3:
        raise ValueError("a bad record")
    return x


def text(x: Any) -> dict[str, Any]:
    return {"t": np.full(1 + int(x) % 5, x)}


def noisy(x: Any, rng: Any) -> Any:
    return x * 1000 + rng.integers(0, 1000)


class Subject:
    """A dataset with its true stream."""

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        rows_of: Dataset[Any] | None = None,
        gapless: bool = True,
        most: int | None = None,
        varied: bool = False,
    ) -> None:
        self.dataset, self.node = dataset, node_of(dataset)
        self.loader = DataLoader(dataset, engine="inline", reshuffle=False)
        self.is_stream = self.node.is_stream
        self.lanes = getattr(self.node, "lanes", 1)
        self.gapless = gapless  # is every position within the rows of `rows_of`?
        self.most = most  # steps, where a take after all else says so
        self.varied = varied  # is every pass another one?
        iterator = iter(self.loader)
        self.states: list[Any] = []
        self.batches: list[Any] = []
        for batch in islice(iterator, LONG):
            self.batches.append(plain(batch))
            if len(self.states) < STEPS:
                self.states.append(None)
        self.ends = len(self.batches) < LONG
        iterator = iter(self.loader)
        for number in range(len(self.states)):
            self.states[number] = iterator.get_state()
            next(iterator)
        self.states.append(iterator.get_state())
        whole = self.batches
        if rows_of is not None:
            whole = [plain(batch) for batch in islice(DataLoader(rows_of, engine="inline"), LONG)]
            if most is not None:
                self.batches = whole  # a state may know less of its steps than of its rows
        self.rows = lane_rows(whole, self.lanes)
        self.known = {row for lane in self.rows for row in lane}
        self.positions = {position(state): k for k, state in enumerate(self.states)}
        self.epochs = {state["epoch"] for state in self.states}

    def end_of_pass(self, epoch: int) -> int:
        """The step after the last of the pass over the loader that an epoch belongs to."""
        steps, length = self.node.length, self.node.one_epoch().length
        if steps is None or not length:
            return self.node.limit
        span = -(-steps // length)
        return epoch // span * span * length + steps

    def batch_at(self, step: int) -> Any:
        """The batch of a step, which may belong to a later pass."""
        if step < self.node.limit:
            return self.dataset[step]
        iterator = self.loader.epoch(step // self.node.one_epoch().length)
        iterator.seek(step)
        return next(iterator)

    def is_other_pass(self, state: Any) -> bool:
        """Does a state lead to rows that the true stream need not have?"""
        is_new_epoch = state["epoch"] not in self.epochs and self.node.random_stages > 0
        return position(state) not in self.positions and (self.varied or is_new_epoch)


def plain(batch: Any) -> list[Any]:
    """The rows of a batch as what can be compared; a batch of a bucket is one row."""
    if isinstance(batch, dict) and "t_length" in batch:
        return [str({name: leaf.tolist() for name, leaf in batch.items()})]
    if isinstance(batch, dict):
        names = sorted(batch)
        return [str([batch[name][i].tolist() for name in names]) for i in range(len(batch["t"]))]
    return list(np.atleast_1d(batch).tolist())


def lane_rows(batches: list[Any], lanes: int) -> list[list[Any]]:
    """The rows of every lane; of several lanes, as long as all have rows."""
    if lanes == 1:
        return [[row for batch in batches for row in batch]]
    full = max(map(len, batches), default=0)
    share = full // lanes
    whole = [batch for batch in batches if len(batch) == full]
    return [
        [row for batch in whole for row in batch[lane * share : (lane + 1) * share]]
        for lane in range(lanes)
    ]


def position(state: Any) -> str:
    try:
        return json.dumps([state.get("epoch"), state.get("above"), state.get("lanes")])
    except (TypeError, ValueError, RecursionError):  # the own state of an iterable may be anything
        return ""


@cache
def subjects() -> dict[str, Subject]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # loaders are iterated again
        return made_subjects()


def made_subjects() -> dict[str, Subject]:
    ints, stream = Dataset.range(64), Dataset.range(64).filter(even)
    by_number = Dataset.from_iterable(numbers)
    own_state = Dataset.from_iterable(lambda: Stateful(70))
    texts = Dataset.range(90).map(text)
    mix = Dataset.mix([stream.repeat(), Dataset.range(100, 109).repeat()], [2, 1])
    train, _ = ints.split(0.75, 0.25)
    return {
        # Read by index.
        "short": Subject(ints.shuffle(1).batch(5)),
        "epochs": Subject(ints.shuffle(1).batch(5).repeat(3)),
        "endless": Subject(train.shuffle(2).repeat().batch(7)),
        "by index": Subject(Dataset.mix([ints, Dataset.range(9)], [2, 1], stop="repeat").batch(4)),
        "to the end": Subject(
            Dataset.mix([ints, Dataset.range(9)], [2, 1], stop="all_exhausted").batch(4)
        ),
        "taken": Subject(ints.take(50).batch(4).repeat().take(30)),
        "unbatched": Subject(ints.batch(3).random_map(noisy).unbatch().batch(4, pad_to=None)),
        "without": Subject(ints.without([3, 20]).shuffle(1).batch(5).repeat(3)),
        # Streams of units.
        "filter without": Subject(
            ints.without([3, 20]).filter(even).repeat().batch(4, lanes=2), varied=True
        ),
        "filter": Subject(stream.batch(4)),
        "passes": Subject(stream.repeat(3).batch(4)),
        "for ever": Subject(stream.repeat().batch(4)),
        "below": Subject(ints.shuffle(3).repeat().filter(even).batch(4), varied=True),
        "orders": Subject(ints.shuffle(3).filter(even).repeat().batch(4), varied=True),
        "lanes": Subject(stream.repeat().batch(4, lanes=2)),
        "lanes end": Subject(stream.batch(4, lanes=4), gapless=False),
        "some": Subject(ints.flat_map(some).shuffle(window=16).batch(3, drop_remainder=True)),
        "drawn": Subject(stream.random_map(noisy).batch(4)),
        "bad": Subject(stream.map(fails).on_error("replace").batch(4)),
        "pack": Subject(texts.pack({"t": 8}, window=30).batch(2)),
        "bucket": Subject(texts.bucket([2, 5], [4, 3], window=30)),
        # Counters of records, and of batches.
        "take": Subject(stream.repeat().take(45).batch(4), rows_of=stream.repeat().batch(4)),
        "skip": Subject(stream.skip(5).batch(4), rows_of=stream.batch(4)),
        "few": Subject(
            stream.repeat().batch(4).take(20), rows_of=stream.repeat().batch(4), most=20
        ),
        "above": Subject(
            stream.batch(4).skip(1).take(5).repeat(), rows_of=stream.batch(4), gapless=False
        ),
        "twice": Subject(stream.batch(5).repeat(2).skip(1), rows_of=stream.batch(5), gapless=False),
        # Stages over ordered rows.
        "window": Subject(stream.repeat().skip(3).shuffle(window=8).batch(3), gapless=False),
        "runs": Subject(stream.repeat().skip(3).flat_map(some).batch(3), gapless=False),
        "mix": Subject(mix.batch(4), gapless=False),
        "mixed windows": Subject(mix.shuffle(window=8).batch(4), gapless=False),
        "again": Subject(
            Dataset.mix([stream, Dataset.range(100, 109)], [2, 1], stop="repeat").batch(4),
            gapless=False,
        ),
        # Iterables.
        "counted": Subject(by_number.batch(4)),
        "counted windows": Subject(by_number.shuffle(window=8).batch(3)),
        "counted passes": Subject(by_number.filter(even).repeat(2).batch(4)),
        "own state": Subject(own_state.filter(even).batch(4)),
        "own windows": Subject(own_state.shuffle(window=8).batch(3), gapless=False),
    }


# Damage --------------------------------------------------------------------------------------

NUMBERS = (
    0, 1, 2, -1, -5, 7, 255, 1 << 31, 1 << 40, 1 << 61, 1 << 62, 1 << 63, (1 << 64) + 1, 10**30,
)  # fmt: skip


def damaged(rng: random.Random, state: Any, names: list[str]) -> Any:
    state = copy.deepcopy(state)
    for _ in range(rng.choice((0, *[1] * 12, 2, 2, 3))):
        state = change(rng, state, names)
    return state


def change(rng: random.Random, state: Any, names: list[str]) -> Any:
    roll = rng.random()
    if roll < 0.03:
        return rng.choice((None, [], {}, "state", 3, [state], {"step": 3}, deep(rng)))
    if roll < 0.1:
        other = subjects()[rng.choice(names)]
        return copy.deepcopy(rng.choice(other.states))
    if not isinstance(state, dict) or not state:
        return state
    if roll < 0.25:  # a field of another state
        other = subjects()[rng.choice(names)]
        key = rng.choice(sorted(state, key=str))
        state[key] = copy.deepcopy(rng.choice(other.states).get(key))
        return state
    if roll < 0.75:  # where the position is
        places = ("step", "epoch", "record", "above", "removed", *["lanes"] * 4)
        key = rng.choice([key for key in places if key in state] or ["step"])
        state[key] = within(rng, state.get(key))
        return state
    return within(rng, state)


def within(rng: random.Random, value: Any) -> Any:
    """The value with a change somewhere inside."""
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        value[at] = within(rng, value[at])
        return value
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(sorted(value, key=str))
        value[key] = within(rng, value[key])
        return value
    return replaced(rng, value)


def replaced(rng: random.Random, value: Any) -> Any:
    if isinstance(value, dict):
        return changed_dict(rng, value)
    if isinstance(value, list):
        return rng.choice(
            (value[:-1], value[1:], [*value, 0], value[::-1], value * 2, [value], [], {}, None, 0,
             tuple(value), "list")
        )  # fmt: skip
    if type(value) is int and rng.random() < 0.8:
        return rng.choice((value + 1, value - 1, value * 2, value + rng.randrange(20),
                           *[rng.choice(NUMBERS)] * 4))  # fmt: skip
    if type(value) is int and abs(value) > 2**1000:  # neither float nor str takes it
        value = 2**1000
    return rng.choice(
        (float(value) if type(value) is int else 0.5, float("nan"), float("inf"), True, False, None,
         str(value), "", [], [value], {}, {"0": value}, 10**5000, np.int64(3), np.arange(3),
         deep(rng))
    )  # fmt: skip


def changed_dict(rng: random.Random, value: dict[Any, Any]) -> Any:
    keys = list(value)
    match rng.randrange(7):
        case 0 if keys:
            del value[rng.choice(keys)]
        case 1:
            value[rng.choice(("more", "0", "1", "01", "²", "-1", "9" * 30, 0, None))] = [0, 0]
        case 2 if keys:
            value[f"{rng.choice(keys)}x"] = value.pop(rng.choice(keys))
        case 3 if len(keys) > 1:
            one, other = rng.sample(keys, 2)
            value[one], value[other] = value[other], value[one]
        case 4:
            return list(value.items())
        case 5:
            return {}
        case _:
            return None
    return value


def deep(rng: random.Random) -> Any:
    made: Any = 0
    for _ in range(rng.choice((3, 50, 3000))):
        made = [made]
    return made


# Cases ---------------------------------------------------------------------------------------


def check(seed: int) -> str:
    rng = random.Random(seed)
    names = list(subjects())
    subject = subjects()[rng.choice(names)]
    # Half of the foreign states are of the subject itself, at another step.
    own = [name for name in names if subjects()[name] is subject]
    names = own if rng.random() < 0.5 else names
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if subject.lanes > 1 and rng.random() < 0.3:
            return check_merged(rng, subject, names)
        state = damaged(rng, rng.choice(subject.states), names)
        return check_state(rng, subject, state)


def check_merged(rng: random.Random, subject: Subject, names: list[str]) -> str:
    whole = rng.choice(subject.states)
    parts = [{**whole, "lanes": {lane: at}} for lane, at in whole["lanes"].items()]
    number = rng.randrange(len(parts))
    parts[number] = damaged(rng, parts[number], names)
    rng.shuffle(parts)
    try:
        state = merge_states(parts)
    except LoaderxError:
        return "refused"
    return check_state(rng, subject, state)


def check_state(rng: random.Random, subject: Subject, state: Any) -> str:
    iterator = iter(subject.loader)
    strict = rng.random() < 0.75
    try:
        iterator.set_state(state, strict=strict)
    except LoaderxError:
        assert iterator.step == 0
        return "refused"
    start, restored = iterator.step, iterator.get_state()
    if strict:
        assert start == state["step"], (start, state)
    found, failed = read(iterator)
    compare = compare_stream if subject.is_stream else compare_index
    try:
        compare(subject, start, restored, found, failed)
        if rng.random() < 0.25 and not failed:
            again = iter(subject.loader)
            again.set_state(restored)
            assert read(again) == (found, False), "a restored state gives something else"
    except AssertionError as error:
        raise AssertionError(f"{error}: {shortened(state)} strict={strict}") from error
    return "refused" if failed else "data"


def shortened(state: Any) -> str:
    try:
        return repr(state)[:600]
    except Exception:
        return "a state that cannot be shown"


def read(iterator: Any) -> tuple[list[Any], bool]:
    """The next batches, and whether it was refused after them."""
    found: list[Any] = []
    try:
        for batch in islice(iterator, AHEAD):
            found.append(plain(batch))
    except LoaderxError:
        return found, True
    return found, False


def compare_index(
    subject: Subject, start: int, restored: Any, found: list[Any], failed: bool
) -> None:
    assert not failed, "a step that cannot be read"
    stop = subject.end_of_pass(restored["epoch"])
    assert len(found) == min(AHEAD, stop - start), f"{len(found)} batches from step {start}"
    for step, batch in enumerate(found, start):
        assert batch == plain(subject.batch_at(step)), f"step {step} differs"


def compare_stream(
    subject: Subject, start: int, restored: Any, found: list[Any], failed: bool
) -> None:
    known = subject.positions.get(position(restored))
    left = AHEAD if subject.most is None else max(0, min(AHEAD, subject.most - start))
    if known is not None:
        assert not failed, "a true position is refused"
        expected = subject.batches[known : known + left]
        assert found == expected, f"at step {known} of the true stream: {found} is not {expected}"
    rows = {row for batch in found for row in batch}
    is_other_pass = subject.is_other_pass(restored)
    if not is_other_pass:
        assert rows <= subject.known, f"rows of nowhere: {sorted(map(str, rows - subject.known))}"
    if not subject.ends and not failed:
        assert len(found) == left, f"an endless stream ended after {len(found)} batches"
    if subject.gapless and not is_other_pass:
        for mine, true in zip(lane_rows(found, subject.lanes), subject.rows, strict=True):
            assert is_stretch(mine, true), f"rows that do not follow each other: {mine}"


def is_stretch(mine: list[Any], true: list[Any]) -> bool:
    if not mine:
        return True
    return any(true[at : at + len(mine)] == mine for at, row in enumerate(true) if row == mine[0])
