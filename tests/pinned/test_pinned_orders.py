"""Every chain of `chains.py` gives what was recorded, on every engine, host, and from every state.

If a test fails here, the data that users get have changed.  If that is meant, `record.py` writes
the pins anew.

Worker processes take most of the time, so only the chains of `IN_PROCESSES` run in them, on one
host; LOADERX_PINS=all runs all chains, on the second of two hosts as well.
"""

from __future__ import annotations

import inspect
import json
import os
import typing
from collections.abc import Iterable
from itertools import islice
from typing import Any

import pytest

from executors import process_pool
from inside import node_of, session_of
from loaderx import ChainError, DataLoader, Dataset, merge_states
from loaderx.chain.node import Node
from loaderx.engines import Auto, Engine, Executor, Processes, Shared
from loaderx.stages import mixture, nodes
from tests.pinned.chains import CHAINS
from tests.pinned.inputs import write_files
from tests.pinned.reading import (
    END,
    ONE_HOST,
    RAISES,
    SAVED_AFTER,
    SECOND_OF_TWO,
    START,
    Read,
    begin,
    digest,
    elements_of,
    key,
    places,
    quietly,
)
from tests.pinned.record import ORDERS, STATES

PINS: dict[str, dict[str, str]] = json.loads(ORDERS.read_text())
PINNED_STATES: dict[str, dict[str, Any]] = json.loads(STATES.read_text())
FIRST, SECOND_HOST = key(START, ONE_HOST), key(START, SECOND_OF_TWO)
ROWS = {row: (beginning, shard) for row, beginning, shard in places()}

IN_PROCESSES = """
    source_dtypes source_list_of_trees source_object source_object_that_gathers
    source_tokens_with_targets source_file_keys source_path
    shuffle_100_000 shuffle_window shuffle_blocks_and_windows shuffle_chunks
    split_first slice_of_endless pick_again repeat_nested
    sample_by_weight cache_in_memory map_runs map_with_index_of_records
    random_map_runs random_map_batches
    random_map_with_global_generators random_keys_of_records apply_list several_seeds_deep
    zip_by_name concatenate_batches mix_weighted mix_nested mix_of_batches
    batch_pad_remainder batch_pad_value_by_leaf batch_collate unbatch_draws
    filter_many_lanes filter_draws filter_that_ends_in_lanes flat_map_draws
    stream_of_everything_per_record stream_shuffled_in_windows stream_batch_pad_to
    stream_functions_of_batches stream_take_repeated stream_repeat_below_and_above_batch
    pack_concat pack_split pack_two_leaves pack_keys_of_rows
    bucket_drop_remainder bucket_of_a_stream bucket_over_iterable
    stream_mix_endless_lanes iterable_shards
    on_error_raise on_error_replace on_error_skip_with_limit on_error_limit_reached
    on_error_function_in_a_stream deep_index_chain window_stage_that_draws
    skip_steps_of_batches without_empty window_of_records split_by_class
""".split()  # noqa: SIM905 (a list would take a screen)
# The failures that count towards a limit are the loader's: another one begins at 0.
LIMITED = "on_error_limit_reached"
ALL = os.environ.get("LOADERX_PINS") == "all"


def tens(names: Iterable[str]) -> list[list[str]]:
    names = list(names)
    return [names[first : first + 10] for first in range(0, len(names), 10)]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("files")
    write_files(made)
    return made


@pytest.fixture
def make(folder):
    """Makes a chain by its name; no warning counts."""
    with quietly():
        yield lambda name: CHAINS[name](folder)


def compare(read: Read, pinned: list[str], where: str, first: int = 0) -> None:
    """What was read, from element ``first`` on, is what is pinned."""
    for number, (found, pin) in enumerate(zip(read.digests, pinned, strict=False), first):
        if found != pin:
            element = read.elements[number - first :][:1]
            raise AssertionError(
                f"{where}: element {number} is not as pinned: {found} instead of {pin}"
                + (f" (the {number - first} before it are)." if number > first else ".")
                + (f" It is {element[0]!r:.1000}" if element else "")
            )
    assert len(read.digests) == len(pinned), (
        f"{where}: {len(read.digests)} elements were read, {len(pinned)} are pinned."
    )


def check_row(name: str, row: str, engine: str, dataset: Dataset[Any]) -> None:
    iterator = begin(dataset, *ROWS[row], engine)
    where = f"{name}, {row}, engine {engine}"
    assert iterator is not None, f"{where}: it is pinned, and now it is refused."
    compare(Read(iterator, elements_of(row)), PINS[name][row].split(), where)
    iterator.close()


def rows_of(name: str, *rows: str) -> list[str]:
    return [row for row in rows if row in PINS[name]]


# The pins themselves --------------------------------------------------------------------------


def test_every_chain_is_pinned():
    assert sorted(PINS) == sorted(CHAINS)
    assert sorted(PINNED_STATES) == sorted(CHAINS)
    assert set(IN_PROCESSES) <= set(CHAINS)
    assert len(IN_PROCESSES) == len(set(IN_PROCESSES))


@pytest.mark.parametrize("name", CHAINS)
def test_every_chain_has_something_to_go_on_with(name):
    """A state after three steps says nothing if the stream ends there."""
    for row in rows_of(name, FIRST, SECOND_HOST):
        assert row in PINNED_STATES[name]
        assert len(PINS[name][row].split()) > SAVED_AFTER + 1


def test_no_two_chains_give_the_same():
    """One of them would pin nothing, or not what its name says."""
    names: dict[str, list[str]] = {}
    for name, rows in PINS.items():
        names.setdefault(rows[FIRST], []).append(name)
    assert not [same for same in names.values() if len(same) > 1]


# Engines --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CHAINS)
def test_inline(name, make):
    dataset = make(name)
    for row, (beginning, shard) in ROWS.items():
        if row in PINS[name]:
            check_row(name, row, "inline", dataset)
        else:
            allowed = begin(dataset, beginning, shard) is not None
            assert not allowed, f"{name}, {row}: it was refused, and now it is not."


@pytest.mark.parametrize("name", CHAINS)
def test_threads(name, make):
    for row in rows_of(name, FIRST, SECOND_HOST):
        check_row(name, row, "threads", make(name))


@pytest.mark.parametrize("name", list(CHAINS)[::10])
def test_auto_that_takes_threads(name, make):
    """By itself it would stay inline for so few elements."""
    with DataLoader(make(name), engine=Auto(2)) as loader:
        iterator = iter(loader)
        search = session_of(loader).search
        search.found, search.resting = ("threads", 2), 0
        read = Read(iterator, elements_of(FIRST))
    compare(read, PINS[name][FIRST].split(), f"{name}, auto")


def check_shared(names: Iterable[str], row: str, make: Any, engine: Engine) -> None:
    """Several chains in the same workers."""
    engine = Shared(engine)
    iterators = {name: begin(make(name), *ROWS[row], engine) for name in names if row in PINS[name]}
    for name, iterator in iterators.items():
        compare(
            Read(iterator, elements_of(row)), PINS[name][row].split(), f"{name}, {row}, {engine}"
        )
    for iterator in iterators.values():
        iterator.close()


@pytest.mark.parametrize("names", tens(CHAINS if ALL else IN_PROCESSES), ids=lambda ten: ten[0])
@pytest.mark.parametrize("row", [FIRST, *[SECOND_HOST] * ALL])
def test_processes(names, row, make):
    """Ten chains at a time, in the same two workers."""
    check_shared(names, row, make, Processes(2))


@pytest.mark.parametrize("names", tens(CHAINS if ALL else IN_PROCESSES), ids=lambda ten: ten[0])
@pytest.mark.parametrize("row", [FIRST, *[SECOND_HOST] * ALL])
def test_executor(names, row, make):
    check_shared(names, row, make, Executor(process_pool))


@pytest.mark.parametrize("name", [name for name in CHAINS if name != LIMITED])
def test_without_a_loader(name, make):
    read = Read(make(name), elements_of(FIRST))
    compare(read, PINS[name][FIRST].split(), f"{name}, no loader")


@pytest.mark.parametrize("name", [name for name in CHAINS if name != LIMITED])
def test_by_index(name, make):
    dataset = make(name)
    for number, pin in enumerate(PINS[name][FIRST].split()):
        if pin == END or pin.startswith(RAISES):
            break
        try:
            element = dataset[number]
        except ChainError:
            assert number == 0, f"{name}: ds[{number}] is refused, and ds[0] is not"
            return  # a stream
        assert digest(element) == pin, f"{name}, ds[{number}]: not as pinned. It is {element!r}"


@pytest.mark.parametrize("name", [name for name in CHAINS if name.startswith("on_error_")])
def test_records_fail(name, make):
    """Else a chain would pin nothing of on_error."""
    with DataLoader(make(name), engine="inline") as loader:
        read = Read(loader, elements_of(FIRST))
        assert loader.stats().replaced or read.digests[-1].startswith(RAISES)


# States ---------------------------------------------------------------------------------------


def rest_of(name: str, row: str) -> list[str]:
    return PINS[name][row].split()[SAVED_AFTER:]


def read_rest(iterator: Any, name: str, row: str, where: str) -> None:
    read = Read(iterator, elements_of(row) - SAVED_AFTER)
    compare(read, rest_of(name, row), f"{name}, {row}, {where}", SAVED_AFTER)
    iterator.close()


def state_of(dataset: Dataset[Any], row: str) -> Any:
    """The state after a few steps, as it comes back from a file."""
    iterator = begin(dataset, *ROWS[row])
    for _ in islice(iterator, SAVED_AFTER):
        pass
    return json.loads(json.dumps(iterator.get_state()))


@pytest.mark.parametrize("name", CHAINS)
def test_states_are_as_pinned(name, make):
    for row, pinned in PINNED_STATES[name].items():
        state = state_of(make(name), row)
        assert state.keys() == pinned.keys(), f"{name}, {row}"
        for part in pinned:
            assert state[part] == pinned[part], f"{name}, {row}: {part!r} of the state"


@pytest.mark.parametrize("name", [name for name in CHAINS if name != LIMITED])
def test_pinned_states_go_on(name, make):
    for row, pinned in PINNED_STATES[name].items():
        iterator = begin(make(name), *ROWS[row])
        iterator.set_state(pinned, strict=True)
        read_rest(iterator, name, row, "from its pinned state")


@pytest.mark.parametrize("name", [name for name in CHAINS if name != LIMITED])
def test_states_go_on(name, make):
    """Whatever is in a state."""
    for row in PINNED_STATES[name]:
        state = state_of(make(name), row)
        iterator = begin(make(name), *ROWS[row], "threads")
        iterator.set_state(state, strict=True)
        read_rest(iterator, name, row, "from its own state, on threads")


@pytest.mark.parametrize(
    "name", [name for name in CHAINS if SECOND_HOST in PINS[name] and name != LIMITED]
)
def test_merged_states_go_on(name, make):
    """Two hosts have stopped, and one goes on alone; then the other way round."""
    states = [state_of(make(name), key(START, (host, 2))) for host in range(2)]
    iterator = iter(DataLoader(make(name), engine="inline"))
    iterator.set_state(merge_states(states), strict=True)
    read_rest(iterator, name, FIRST, "from the states of two hosts")
    iterator = begin(make(name), START, SECOND_OF_TWO)
    iterator.set_state(state_of(make(name), FIRST), strict=True)
    read_rest(iterator, name, SECOND_HOST, "from the state of one host")


# Is everything pinned? ------------------------------------------------------------------------


def final_nodes(base: type = Node) -> set[type]:
    found = set()
    for below in base.__subclasses__():
        if below.__module__.startswith("loaderx."):  # tests may have nodes of their own
            found |= final_nodes(below) or {below}
    return found


@pytest.mark.parametrize("names", [CHAINS, IN_PROCESSES], ids=["all", "in processes"])
def test_every_node_is_in_a_chain(names, make):
    used = {type(node) for name in names for node in node_of(make(name)).below()}
    # A loader puts it on top for devices; no dataset has it.
    missing = {node.__name__ for node in final_nodes() - used - {nodes.Narrowed}}
    assert not missing, "no pinned chain has these nodes; add one to chains.py"


def public_methods() -> dict[str, Any]:
    """The methods that make datasets: as they stand in the class, static ones wrapped."""
    special = ("__init__", "__getitem__")
    others = ("head", "records", "show", "steps_of")  # these say what is in a dataset
    return {
        name: member
        for name, member in vars(Dataset).items()
        if name not in others
        and (name in special or not name.startswith("_"))
        and not isinstance(member, property)
    }


class Calls:
    """Which values were given to which parameter of which method."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.called: set[str] = set()
        self.given: dict[tuple[str, str], list[Any]] = {}
        self.functions: dict[str, Any] = {}
        for name, member in public_methods().items():
            is_static = isinstance(member, staticmethod)
            function = member.__func__ if is_static else member
            self.functions[name] = inspect.unwrap(function)
            wrapped = self.wrap(name, function)
            monkeypatch.setattr(Dataset, name, type(member)(wrapped) if is_static else wrapped)

    def wrap(self, name: str, function: Any) -> Any:
        signature = inspect.signature(self.functions[name])

        def call(*args: Any, **named: Any) -> Any:
            self.called.add(name)
            bound = signature.bind(*args, **named)
            bound.apply_defaults()
            for parameter, value in bound.arguments.items():
                self.given.setdefault((name, parameter), []).append(value)
            return function(*args, **named)

        call.__name__ = name
        return call

    def unused(self) -> list[str]:
        """Methods, parameters and choices of parameters that no call has used."""
        found = [f"{name}()" for name in self.functions if name not in self.called]
        for name, function in self.functions.items():
            hints = typing.get_type_hints(function, localns=vars(mixture))  # imported late
            for parameter in inspect.signature(function).parameters.values():
                values = self.given.get((name, parameter.name), [])
                empty = {parameter.VAR_POSITIONAL: (), parameter.VAR_KEYWORD: {}}
                default = empty.get(parameter.kind, parameter.default)
                if parameter.name != "self" and all(is_same(v, default) for v in values):
                    found.append(f"{name}({parameter.name}=)")
                hint = hints.get(parameter.name)
                if typing.get_origin(hint) is typing.Literal:
                    unused = set(typing.get_args(hint)) - set(values)
                    found += [f"{name}({parameter.name}={choice!r})" for choice in unused]
        return found


def is_same(value: Any, default: Any) -> bool:
    """Does a value say no more than the default?"""
    return value is default or (type(value) is type(default) and value == default)


def test_every_parameter_is_in_a_chain(monkeypatch, make):
    calls = Calls(monkeypatch)
    for name in CHAINS:
        make(name)
    assert not calls.unused(), "no pinned chain uses these; add one to chains.py"
    policies = calls.given["on_error", "policy"]  # its annotation does not tell the choices
    assert {p if isinstance(p, str) else "function" for p in policies} == {
        "raise",
        "replace",
        "skip",
        "function",
    }


def test_unused_parameters_are_noticed(monkeypatch):
    calls = Calls(monkeypatch)
    Dataset.range(9).shuffle(None, window=3).pack({"t": 3}, strategy="concat")
    unused = calls.unused()
    assert "range(start=)" not in unused
    assert "shuffle(window=)" not in unused
    assert "pack(strategy='concat')" not in unused
    assert {"range(step=)", "shuffle(seed=)", "pack(strategy='first_fit')", "mix()"} <= set(unused)


# Digests --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ((1, 2), [1, 2]),
        (1, True),
        (1, 1.0),
        ("1", 1),
        (None, ()),
        ([[1], [2]], [[1, 2]]),
        ({"a": ("b", "c")}, {"a": "b", "c": ()}),
    ],
)
def test_digests_tell_trees_apart(one, other):
    assert digest(one) != digest(other)
    assert digest(one) == digest(one)
