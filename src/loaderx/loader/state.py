"""A position as a small dict for JSON, independent of engines, workers and hosts.

``step`` is the next batch to be handed out.  ``chain`` has one short string per stage, so that a
state of another chain is refused, and the message names the stage that differs.  ``epoch`` and
``record`` give the same position in records, for a chain whose batch size has changed.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from loaderx.chain.encoding import parse_stage
from loaderx.chain.fingerprint import identity
from loaderx.chain.node import Node
from loaderx.errors import ArgumentError, StateError, warn_user
from loaderx.frozen import Frozen
from loaderx.loader.data_digest import DataDigest
from loaderx.order.epochs import LIMIT, SkippedSteps
from loaderx.order.permutation import VERSION as ORDER_VERSION
from loaderx.reading.saved_position import (
    UNCHANGED,
    Changed,
    LanePosition,
    OtherWeights,
    other_weights,
    shown,
)

STATE_VERSION = 2

State: TypeAlias = dict[str, Any]
"""What `get_state` returns and `set_state` takes; it may come from a damaged file."""

_ORDER = f"order {ORDER_VERSION}"


class FoundStep(Frozen):
    """Where a state continues: a step and its epoch, of which it may be the end."""

    step: int
    epoch: int


def make_state(
    chain: list[str], base: Node, step: int, data: DataDigest, *, at_end: bool = False
) -> State:
    """The state at a step; ``base`` is one epoch.

    ``at_end``: the step is the end of an epoch, with nothing left, not the start of the next.
    """
    epoch, record = _place(base, step, at_end=at_end)
    return {
        "version": STATE_VERSION,
        "step": step,
        "epoch": epoch,
        "record": record,
        "chain": [_ORDER, *chain],
        **data.in_state(),
    }


def _place(base: Node, step: int, *, at_end: bool = False) -> tuple[int, int]:
    """The epoch of a step, and the records before it in that epoch."""
    if not base.length:
        return 0, base.rows_before(step)
    epoch, inside = divmod(step - at_end, base.length)
    return epoch, base.rows_before(inside + at_end)


def read_state(
    state: State,
    chain: list[str],
    base: Node,
    data: DataDigest,
    skipped: SkippedSteps,
    *,
    strict: bool,
) -> FoundStep:
    """The step at which this chain continues."""
    step, saved = _parse(state)
    if "lanes" in state:
        raise StateError("the state belongs to a stream, and this dataset is not one.")
    saved, here, since = _apart_from_later_weights(saved, [_ORDER, *chain])
    removed, others_removed = data.removed_since(state)
    problem = (
        _difference(saved, here)
        or others_removed
        or _other_epochs(state, base, step)
        or _other_weights(state, base, since)
    )
    if problem is None:
        _warn_about_names(saved, here)
        _warn_about_data(state, saved, here, data)
        if removed and step:
            from loaderx.loader.came_before import came_before  # late: few states are that old

            _warn_about_removed(removed, step, came_before(base, state, step, skipped))
        return _found(state, base, step)
    if strict:
        raise StateError(
            f"the state belongs to another chain: {problem} Pass strict=False to continue at "
            "the same record anyway."
        )
    moved = _same_record(state, base)
    warn_user(
        f"the state belongs to another chain: {problem} Continuing at step {moved} (it was step "
        f"{step}){_coming_again(state, base, moved)}.{_about_mixes(saved, here)}"
    )
    _warn_about_data(state, saved, here, data)
    return _found(state, base, moved)


def _found(state: State, base: Node, step: int) -> FoundStep:
    """A step between two epochs is the end of the first if the state says so, else the next one."""
    epoch = _place(base, step)[0]
    is_end = "epoch" in state and base.length and step % base.length == 0
    return FoundStep(step, epoch - 1 if is_end and _number(state, "epoch") < epoch else epoch)


def _other_epochs(state: State, base: Node, step: int) -> str | None:
    """A problem text if the step means another record, because epochs had another length."""
    if not base.length or step >= LIMIT or not {"epoch", "record"} <= state.keys():
        return None
    was = _record_of(state)
    if was in (_place(base, step), _place(base, step, at_end=step > 0)):
        return None
    epoch, record = _place(base, step)
    return (
        f"its step {step} was record {shown(was[1])} of epoch {shown(was[0])}, and is record "
        f"{record} of epoch {epoch} now: an epoch had another number of steps."
    )


def _apart_from_later_weights(
    saved: list[str], here: list[str]
) -> tuple[list[str], list[str], int | None]:
    """Two chains without the changes of the weights of a mix, if the mix is the same otherwise.

    Also the first position of the mix where these differ; None if they do not.
    """
    old, new = (parse_stage(chain[1]) if len(chain) > 1 else None for chain in (saved, here))
    if old is None or new is None or not old.kind == new.kind == "mix":
        return saved, here, None
    before, now = (_read_changes(stage.values.pop("changes", "[]")) for stage in (old, new))
    if before == now or identity(old.text()) != identity(new.text()):
        return saved, here, None
    equal = sum(itertools.takewhile(bool, map(operator.eq, before, now)))
    since = min(change[0] for change in (*before[equal:], *now[equal:]))
    return [saved[0], old.text(), *saved[2:]], [here[0], new.text(), *here[2:]], since


def _read_changes(text: str) -> list[list[Any]]:
    """The changes of the weights of a mix in a state: lists that begin with a position."""
    import json  # late: most states have no mix

    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(text)
        if isinstance(found, list) and all(
            isinstance(change, list) and change and type(change[0]) is int for change in found
        ):
            return found
    raise StateError(f"the state has {_cut(text)} for the weights of a mix: it is damaged.")


def _other_weights(state: State, base: Node, since: int | None) -> str | None:
    """A problem text if the weights of a mix differ before the position of a state."""
    if since is None:
        return None
    position = None if _number(state, "epoch") else _position_in_mix(base, _number(state, "step"))
    if position is not None and position <= since:
        return None
    first = f"step {since // base.batch_size}, " if base.batch_size else ""
    return other_weights(since, position, first)


def _position_in_mix(node: Node, n: int) -> int | None:
    """How many elements of the mix below ``node`` its first ``n`` need, at most."""
    from loaderx.stages.mix_plan import found_mix  # late: most chains have no mix

    found = found_mix(node, n, at_most=True)
    return None if found is None else found[1]


def _parse(state: object) -> tuple[int, list[str]]:
    """The step and the chain of a state, each value checked."""
    if not isinstance(state, dict) or not {"version", "step", "chain"} <= state.keys():
        advice = " Write json.loads(state)." if isinstance(state, (str, bytes)) else ""
        raise StateError(f"this is not the state of a loader: {shown(state)}.{advice}")
    if type(state["version"]) is not int or state["version"] != STATE_VERSION:
        raise StateError(
            f"the state has version {shown(state['version'])}; this loaderx reads {STATE_VERSION}."
            f"{_about_version_1(state)}"
        )
    for name in ("step", "epoch", "first_epoch", "record"):
        _number(state, name)
    lanes, stages = state.get("lanes", {}), state["chain"]
    fits = isinstance(lanes, dict) and all(map(_is_lane, lanes))
    if not fits or not isinstance(stages, (list, tuple)):
        raise StateError(f"this is not the state of a loader: {shown(state)}.")
    if not stages or not all(isinstance(stage, str) for stage in stages):
        raise StateError(
            f"the state's `chain` must be a list of strings, one for each stage; it is "
            f"{shown(stages)}."
        )
    return _number(state, "step"), list(stages)


def _about_version_1(state: State) -> str:
    if type(state["version"]) is not int or state["version"] != 1:
        return ""
    advice = "If the dataset is the same, use iterator.seek(state['step'])."
    if "lanes" in state:
        advice = "The stream must be read from its beginning."
    return (
        " Version 1 was saved by loaderx 0.1 before its first release and cannot be read: it "
        f"describes the dataset differently. {advice}"
    )


def _number(state: State, name: str) -> int:
    """A number of a state; 0 if it has none of that name."""
    value = state.get(name, 0)
    number = -1
    if not isinstance(value, (bool, np.bool_)):
        with contextlib.suppress(TypeError):  # not `hasattr`: arrays have an __index__ that raises
            number = operator.index(value)
    if number < 0 or number.bit_length() > 256:
        raise StateError(f"the state's {name} must be a whole number, got {shown(value)}.")
    return number


def _is_lane(key: object) -> bool:
    return isinstance(key, str) and len(key) < 10 and key.isascii() and key.isdecimal()


def _same_record(state: State, base: Node) -> int:
    """The step with the record that the state names, in a chain that may have other batches."""
    epoch, record = _record_of(state)
    size = (base.batch_size if base.batched else 1) or 1
    if base.length is None:
        return int(record // size)
    rows = base.rows_before(base.length)
    # A repeat below the batch counts records beyond one epoch.
    epoch, record = epoch + record // rows, record % rows
    return int(epoch * base.length + min(record // size, base.length))


def _record_of(state: State) -> tuple[int, int]:
    if "epoch" not in state or "record" not in state:
        raise StateError("the state has no `epoch` and `record`: it is damaged.")
    return _number(state, "epoch"), _number(state, "record")


def _coming_again(state: State, base: Node, step: int) -> str:
    """Says how many records before the state's position come again, since batches are whole."""
    epoch, record = _record_of(state)
    if base.length is not None:
        whole_epochs, step = divmod(step, base.length)
        record += (epoch - whole_epochs) * base.rows_before(base.length)
    again = record - base.rows_before(step)
    return f"; {again} record{'s' if again > 1 else ''} before it come again" if again > 0 else ""


def _difference(saved: list[str], here: list[str]) -> str | None:
    for number, (old, new) in enumerate(zip(saved, here, strict=False)):
        if identity(old) != identity(new):
            return _stage_difference(number, old, new)
    if len(saved) > len(here):
        return f"it had a stage {_cut(saved[len(here)])} that this chain does not have."
    if len(here) > len(saved):
        return f"it did not have the stage {here[len(saved)]}."
    return None


def _stage_difference(number: int, old: str, new: str) -> str:
    if new == _ORDER:
        return (
            f"it was saved by a loaderx with {_cut(old)} of records and random numbers, and this "
            f"one has {new}."
        )
    before, now = parse_stage(old), parse_stage(new)
    differ: list[str] = []
    if before is not None and now is not None and before.kind == now.kind:
        names = dict.fromkeys([*before.values, *now.values])
        differ = [name for name in names if before.values.get(name) != now.values.get(name)]
    if before is None or now is None or not differ:
        return f"stage {number} was {_cut(old)} and is {new} now."
    if now.kind == "source" and differ == ["length"] and len(before.values) == len(now.values):
        had, has = before.values["length"], now.values["length"]
        return f"the source had {_cut(had)} records and has {has} now."
    listed = [
        _value_difference(name, before.values.get(name), now.values.get(name)) for name in differ
    ]
    return f"stage {number} ({now.kind}): {', '.join(listed)}."


def _value_difference(name: str, old: str | None, new: str | None) -> str:
    if name == "datasets" and old is not None and new is not None:
        digests = [text.strip("[]").split(", ") for text in (old, new)]
        if len(digests[0]) == len(digests[1]) > 1:
            others = [str(i) for i, (a, b) in enumerate(zip(*digests, strict=True)) if a != b]
            return f"dataset {' and '.join(others)} was a different one"
    before, now = ("not set" if text is None else _cut(text) for text in (old, new))
    since = " (from position 0 on)" if name == "tickets" else ""
    return f"{_cut(name)} was {before} and is {now} now{since}"


def _cut(text: str) -> str:
    """A text of a state, which may be damaged, for a message."""
    return text if len(text) <= 200 else f"{text[:197]}..."


def _about_mixes(saved: list[str], here: list[str]) -> str:
    """A note for mixes: with other weights, record n is a different one."""
    old, new = _schedules(saved), _schedules(here)
    if old == new or not (old and new):
        return ""
    return (
        " A mix that is read by index has one position for all of its datasets: with other weights "
        "some of their records come again, and others are left out."
    )


def _about_windows(saved: list[str], here: list[str]) -> str:
    """A note for windows above a mix: with other weights or datasets they hold other rows."""
    kinds = [text.partition("(")[0] for text in here]
    if _mixes(saved) == _mixes(here) or "mix" not in kinds:
        return ""
    above = set(kinds[kinds.index("mix") :]) & {"shuffle", "pack", "bucket", "flat_map"}
    if not above:
        return ""
    anew = "" if _schedules(saved) == _schedules(here) else ", with the new weights"
    return (
        f" The window that was begun above the mix is filled again{anew}: some of its records come "
        "again, and others are left out."
    )


def _schedules(chain: list[str]) -> list[dict[str, str]]:
    """The options that set the order in which mixes take from their datasets."""
    stages = [parse_stage(text) for text in _mixes(chain)]
    return [{**stage.values, "datasets": ""} for stage in stages if stage is not None]


def _mixes(chain: list[str]) -> list[str]:
    return [identity(text) for text in chain if text.startswith("mix(")]


def _warn_about_names(saved: list[str], here: list[str]) -> None:
    for old, new in zip(saved, here, strict=True):
        if old != new and "function=" in old:
            warn_user(
                f"the state was saved with {_cut(old)}, and the chain now has {new}. If the "
                "function does something else, the stream changes from here on."
            )


def _warn_about_data(state: State, saved: list[str], here: list[str], data: DataDigest) -> None:
    if [*map(identity, saved[:2])] != [*map(identity, here[:2])]:
        return  # other sources, as already reported
    others = data.others(state)
    if others:
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        warn_user(
            f"the state was saved with other data: {', '.join(others[:3])}{more} had other "
            "records, of the same number and types. The stream goes on at the same place in the "
            "new ones."
        )


def _warn_about_removed(count: int, step: int, came: int | None = None) -> None:
    if count and step:
        had = "they may have" if came is None else f"{came} of them had"
        warn_user(
            f"{count} of the records of this chain were removed since the state was saved, and do "
            f"not come again: {had} come before its step {step}."
        )


# Streams --------------------------------------------------------------------------------------


class StreamPosition(Frozen):
    """The position that a state holds for a stream."""

    step: int
    first: int  # the epoch that its pass began with, if passes are endless
    counters: list[int]
    positions: list[LanePosition]
    changed: Changed


def make_stream_state(
    chain: list[str],
    step: int,
    counters: Sequence[int],
    lanes: Mapping[int, LanePosition],
    data: DataDigest,
    first: int = 0,
) -> State:
    """The state of a stream: the epoch, the other counters above the batch, and the lanes.

    ``first`` is the epoch that an endless pass began with; its steps are counted from there.
    """
    return {
        "version": STATE_VERSION,
        "step": step,
        "epoch": counters[0],
        **({"first_epoch": first} if first else {}),
        "above": list(counters[1:]),
        "lanes": {str(lane): position for lane, position in lanes.items()},
        "chain": [_ORDER, *chain],
        **data.in_state(),
    }


def without_advice(error: StateError) -> str:
    """The text of an error, for those who cannot pass ``strict=False``."""
    return str(error).partition(" Pass strict=False")[0]


def read_stream_state(
    state: State, chain: list[str], own: range, data: DataDigest, read: Node, *, strict: bool
) -> StreamPosition:
    """The position from which the lanes of this host continue; ``read`` is read in units."""
    step, saved = _parse(state)
    lanes, above = state.get("lanes"), state.get("above", [])
    if not isinstance(above, (list, tuple)):
        raise StateError(f"the state's `above` must be a list of counters, got {shown(above)}.")
    if lanes is None:
        raise StateError(
            "the state has no `lanes`: it belongs to a dataset that is not a stream. "
            f"{_difference(saved, [_ORDER, *chain]) or ''}".rstrip()
        )
    saved, here, since = _apart_from_later_weights(saved, [_ORDER, *chain])
    removed, others_removed = data.removed_since(state)
    problem = _difference(saved, here) or others_removed
    changed = UNCHANGED
    if problem is None:
        _warn_about_names(saved, here)
        if since is not None and strict:  # lanes know their positions, and refuse one too late
            changed = Changed(weights=OtherWeights(since, partial(_position_in_mix, read)))
        elif since is not None:
            warn_user(f"{other_weights(since, None)} Continuing at the same rows.")
        _warn_about_removed(removed, step)
    else:
        _refuse_other_units(saved, here, problem)
        if strict:
            raise StateError(
                f"the state belongs to another chain: {problem} Pass strict=False to continue "
                "anyway, as close to the same rows as possible."
            )
        changed = _changed(saved, here)
        warn_user(
            f"the state belongs to another chain: {problem} {_about_rows(changed)}"
            f"{_about_windows(saved, here)}"
        )
    changed = changed.replace(removed=bool(removed or others_removed))
    _warn_about_data(state, saved, here, data)
    missing = [lane for lane in own if str(lane) not in lanes]
    if missing:
        raise StateError(
            f"the state has the lanes {_listed(lanes)}, and this loader reads {own.start} to "
            f"{own.stop - 1}. Join the states of all hosts with loaderx.merge_states([...])."
        )
    counters = [_number(state, "epoch"), *above]
    first = _number(state, "first_epoch")
    return StreamPosition(step, first, counters, [lanes[str(lane)] for lane in own], changed)


def _refuse_other_units(saved: list[str], here: list[str], problem: str) -> None:
    """Raises if lanes or units differ: then positions mean other rows, and none can be kept."""
    if not saved[-1].startswith("units "):
        raise StateError(
            f"the state has lanes, but its chain ends with {shown(saved[-1])} instead of the size "
            "of the units that they count: it is damaged."
        )
    lanes = [_lanes_of(chain) for chain in (saved, here)]
    if lanes[0] != lanes[1]:
        raise StateError(
            f"the state belongs to another chain: it has lanes={_cut(lanes[0])}, and "
            f"this chain has lanes={lanes[1]}: other lanes read other records, so "
            "neither strict=False nor merge_states can help. "
            f"Write lanes={_cut(lanes[0])} again, or begin a new run."
        )
    if "deal" in here[-1] and "deal" not in saved[-1]:
        raise StateError(
            "the state was saved by an earlier loaderx, which dealt records to lanes in another "
            f"way (deal 1; this loaderx has {here[-1].rpartition(', ')[2]}): its positions mean "
            "other records. The stream must be read from its beginning."
        )
    if saved[-1] != here[-1]:
        before, now = (text.removeprefix("units ") for text in (saved[-1], here[-1]))
        raise StateError(
            f"the state belongs to another chain: {problem} It counts in units of {_cut(before)} "
            f"records, and this chain in units of {now}: the same numbers would mean other rows, "
            "so strict=False does not help. A unit is as long as the largest window; without "
            "windows, the lanes and the length of a small dataset decide. Write them as they were, "
            "or begin a new run."
        )


def _lanes_of(chain: list[str]) -> str:
    parsed = (parse_stage(text) for text in chain)
    return next(
        (stage.values["lanes"] for stage in parsed if stage and "lanes" in stage.values), "1"
    )


def _changed(saved: list[str], here: list[str]) -> Changed:
    """What can be kept of a position."""
    rows = _row_stages(saved) != _row_stages(here)
    mixes = [[parse_stage(text) for text in _mixes(chain)] for chain in (saved, here)]
    if rows or len(mixes[0]) != len(mixes[1]):
        return Changed(schedule=_mixes(saved) != _mixes(here), rows=True)
    schedule, datasets = False, []
    for old, new in zip(*mixes, strict=True):
        if old is None or new is None:
            return Changed(schedule=True, rows=True)
        before, now = (
            stage.values.pop("datasets", "").strip("[]").split(", ") for stage in (old, new)
        )
        schedule = schedule or old.values != new.values or len(before) != len(now)
        if before != now and (len(before) == 1 or len(before) != len(now)):
            return Changed(schedule=schedule, rows=True)  # one digest stands for many datasets
        datasets += [n for n, (a, b) in enumerate(zip(before, now, strict=True)) if a != b]
    return Changed(schedule, datasets=tuple(datasets))


def _row_stages(chain: list[str]) -> list[str]:
    """The stages that decide which rows a unit gives, without the number of records."""
    found = []
    for text in chain[:-1]:
        stage = parse_stage(identity(text))
        if stage is not None and stage.kind == "batch":
            break
        if stage is not None and stage.kind == "source":
            stage.values.pop("length", None)
        if stage is None or stage.kind != "mix":
            found.append(text if stage is None else stage.text())
    return found


def _about_rows(changed: Changed) -> str:
    if changed.rows:
        return (
            "Rows are now made of other records, so the number of used rows cannot be kept: every "
            "unit that was begun is read again from its start, and some of its records come again."
        )
    if changed.datasets:
        one = len(changed.datasets) == 1
        which = f"dataset{'' if one else 's'} {' and '.join(map(str, changed.datasets))}"
        kept = "starts its schedule again" if changed.schedule else "keeps its schedule"
        return (
            f"The mix {kept}, and its other datasets continue at the same rows; {which} "
            f"{'begins' if one else 'begin'} with the start of the unit that was begun, of which "
            "some records come again."
        )
    return "Continuing at the same rows."


def merge_states(states: Iterable[State]) -> State:
    """One state from those of all hosts, each of which has only its own lanes.

    A stream on several hosts needs this to continue on another number of hosts.  The states of
    other datasets are the same on every host, and merging them returns that state.

    >>> from loaderx import DataLoader, Dataset, merge_states
    >>> ds = Dataset.range(96).filter(lambda x: x % 2 == 0).repeat().batch(4, lanes=2)
    >>> hosts = [iter(DataLoader(ds, shard=(host, 2))) for host in range(2)]
    >>> [next(host).tolist() for host in hosts]
    [[0, 2], [8, 10]]
    >>> one = iter(DataLoader(ds))
    >>> one.set_state(merge_states([host.get_state() for host in hosts]))
    >>> next(one).tolist()
    [4, 6, 12, 14]
    """
    is_list = isinstance(states, Iterable) and not isinstance(states, Mapping)
    parts = list(states) if is_list else []
    if not parts:
        raise ArgumentError("merge_states needs a list of the states of all hosts.")
    first, *others = parts
    step, chain = _parse(first)
    merged = dict(first)
    lanes: dict[str, LanePosition] = dict(first.get("lanes", {}))
    for number, other in enumerate(others, 1):
        other_step, other_chain = _parse(other)
        if other_step != step:
            raise StateError(
                f"the states are at different steps: number 0 at {step}, number {number} at "
                f"{other_step}. Save all hosts after the same step."
            )
        problem = _difference(chain, other_chain)
        if problem is None and ("lanes" in first) != ("lanes" in other):
            problem = "only one of them has lanes."
        if problem is not None:
            raise StateError(f"state {number} belongs to another chain than state 0: {problem}")
        for key in first.keys() | other.keys():
            if key not in ("lanes", "chain", "data") and not _equal(first.get(key), other.get(key)):
                raise StateError(
                    f"the states differ in {shown(key)}: number 0 has {shown(first.get(key))}, "
                    f"number {number} has {shown(other.get(key))}."
                )
        for lane, position in other.get("lanes", {}).items():
            if not _equal(lanes.setdefault(lane, position), position):
                raise StateError(f"lane {lane} is in two states, at different positions.")
    if any(not _equal(first.get("data"), other.get("data")) for other in others):
        merged.pop("data", None)  # hosts may have files of their own, so it does not hold for all
    if "lanes" in first:
        merged["lanes"] = {lane: lanes[lane] for lane in sorted(lanes, key=int)}
    return merged


def _equal(one: object, other: object) -> bool:
    try:
        return bool(one == other)
    except Exception:  # endlessly nested lists, or arrays: not from a valid state
        return False


def _listed(lanes: Mapping[str, object]) -> str:
    return ", ".join(sorted(lanes, key=lambda lane: (len(lane), lane))) or "(none)"
