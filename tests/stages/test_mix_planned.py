"""`mix` with names, weights that change, caps of epochs and plans."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

import oracle
import stream_oracle
from chains import arrays, ids
from loaderx import (
    ArgumentError,
    ArgumentTypeError,
    ChainError,
    DataLoader,
    Dataset,
    LoaderxError,
    LoaderxWarning,
    StateError,
    merge_states,
    ramp,
)
from oracle import assert_same
from streams import everything, head, numbers

WEB, CODE, MATH = (Dataset.range(n * 1000, n * 1000 + size) for n, size in enumerate((400, 90, 7)))
PARTS = {"web": WEB, "code": CODE, "math": MATH}
WEIGHTS = [
    (0, {"web": 7, "code": 3}),
    ramp(40, 90, to={"web": 1, "code": 1, "math": 2}),
    (120, {"web": 1, "math": 1}),
]


def endless(weights=WEIGHTS, **options):
    return Dataset.mix({name: part.repeat() for name, part in PARTS.items()}, weights, **options)


def streamed(weights=WEIGHTS, **options):
    parts = {name: part.filter(everything).repeat() for name, part in PARTS.items()}
    return Dataset.mix(parts, weights, **options)


# Names and weights ------------------------------------------------------------------------------


def test_names_are_another_way_to_write_a_list():
    named = Dataset.mix(PARTS, {"code": 2, "web": 7, "math": 1})
    listed = Dataset.mix([WEB, CODE, MATH], [7, 2, 1])
    assert numbers(named) == numbers(listed)
    state = iter(DataLoader(listed.batch(4))).get_state()
    iter(DataLoader(named.batch(4))).set_state(state)
    assert numbers(Dataset.mix(PARTS)) == numbers(Dataset.mix([WEB, CODE, MATH]))
    one_phase = Dataset.mix(PARTS, [(0, [7, 2, 1])])
    assert numbers(one_phase) == numbers(listed)


def test_names_are_shown():
    assert repr(endless()).startswith("Dataset.mix(web, code, math, 7:3:0, 2 changes)\n  0: ")
    many = Dataset.mix({str(n): WEB for n in range(9)})
    assert repr(many).startswith("Dataset.mix(9 datasets, 1:1:1:1:1:1:1:1:1)\n")


def test_a_part_of_weight_0_does_not_come():
    mixed = Dataset.mix([WEB, CODE, MATH], [1, 0, 1])
    assert [x // 1000 for x in numbers(mixed)] == [0, 2] * 7 + [0]
    assert numbers(Dataset.mix([WEB, MATH], [0, 1])) == numbers(MATH)
    later = Dataset.mix(PARTS, [(0, {"web": 1}), (5, {"math": 1})])
    assert numbers(later) == [0, 1, 2, 3, 4, *numbers(MATH)]


@pytest.mark.parametrize("make", [endless, streamed])
def test_a_plan_is_what_comes(make):
    mixed = make()
    came = np.array(numbers(mixed.take(400))) // 1000
    for n in (0, 1, 39, 40, 65, 90, 119, 120, 333, 400):
        plan = mixed.plan(n)
        assert [part.rows for part in plan.parts] == [(came[:n] == c).sum() for c in range(3)]
        assert plan.position == n
    batched = mixed.map(abs).batch(8).map(abs)
    assert batched.plan(10).parts[1].rows == mixed.plan(80)["code"].rows
    assert batched.take(3).plan(10).position == 24


@pytest.mark.parametrize("lanes", [1, 4])
def test_streams_and_datasets_by_index_have_one_plan(lanes):
    one, other = (
        make().batch(8, lanes=n).take(60) for make, n in ((streamed, lanes), (endless, 1))
    )
    for a, b in zip(DataLoader(one), DataLoader(other), strict=True):
        assert sorted(np.asarray(a) // 1000) == sorted(np.asarray(b) // 1000)


@pytest.mark.parametrize("stop", ["first_exhausted", "repeat", "all_exhausted"])
@pytest.mark.parametrize("epochs", [None, {"math": 3}, 2])
@pytest.mark.parametrize("at_cap", ["redistribute", "stop"])
def test_planned_mixes_against_an_oracle(stop, epochs, at_cap):
    parts = {
        "web": arrays(40).shuffle(1),
        "code": arrays(9, 1000).shuffle(2),
        "math": arrays(7, 2000),
    }
    mixed = Dataset.mix(parts, WEIGHTS, stop=stop, epochs=epochs, at_cap=at_cap)
    assert len(ids(mixed)) == len(mixed)
    assert_same(list(mixed.batch(4)), oracle.elements(mixed.batch(4)))


@pytest.mark.parametrize("stop", ["first_exhausted", "repeat"])
@pytest.mark.parametrize("epochs", [None, {"math": 3}])
@pytest.mark.parametrize("at_cap", ["redistribute", "stop"])
@pytest.mark.parametrize("lanes", [1, 2])
def test_planned_streams_against_an_oracle(stop, epochs, at_cap, lanes):
    parts = {"web": WEB.filter(everything), "code": CODE.shuffle(2), "math": MATH.shuffle(1)}
    mixed = Dataset.mix(parts, WEIGHTS, stop=stop, epochs=epochs, at_cap=at_cap)
    batched = mixed.batch(4, lanes=lanes)
    assert_same(list(batched), list(stream_oracle.elements(batched)))


@pytest.mark.parametrize("engine", ["threads", "processes"])
@pytest.mark.parametrize("make", [endless, streamed])
def test_planned_mixes_with_workers(make, engine):
    batched = make(epochs=None, stop="repeat").batch(8).take(40)
    expected = list(batched)
    with DataLoader(batched, engine=engine, num_workers=2) as loader:
        assert_same(list(loader), expected)


def test_parts_that_are_not_read_for_a_while_do_not_hide_an_empty_stream():
    mixed = streamed([(0, [1, 1, 0]), (10**6, [1, 1, 1])]).filter(lambda x: False)
    with pytest.raises(LoaderxError, match="not one record came through in 4 whole epochs"):
        list(mixed.batch(4))


def test_nested_mixes_count_their_own_elements():
    inner = endless([(0, [1, 1, 0]), (6, [0, 0, 1])])
    outer = Dataset.mix(
        {"inner": inner, "more": Dataset.range(5000, 5100)}, [(0, [1, 0]), (4, [1, 1])]
    )
    assert numbers(outer.take(12)) == [
        0,
        1000,
        1,
        1001,
        2,
        5000,
        1002,
        5001,
        2000,
        5002,
        2001,
        5003,
    ]
    assert [part.rows for part in outer.plan(12).parts] == [8, 4]


def test_batches_are_mixed_by_batches():
    parts = {"a": WEB.batch(4), "b": CODE.batch(4)}
    mixed = Dataset.mix(parts, [(0, {"a": 1}), (2, {"b": 1}), (4, {"a": 1, "b": 1})], part=None)
    assert [int(batch[0]) // 1000 for batch in mixed.take(6)] == [0, 0, 1, 1, 0, 1]
    assert mixed.plan(6)["b"].rows == 3


@pytest.mark.parametrize(
    ("datasets", "weights", "error", "message"),
    [
        (PARTS, {"web": 1, "wab": 1}, ArgumentError, "has 'wab', which is none of the datas"),
        ([WEB], {"web": 1}, ArgumentTypeError, "has names, and the datasets have none"),
        (PARTS, [(1, {"web": 1})], ArgumentError, r"must begin with \(0, weights\)"),
        (PARTS, [ramp(0, 9, to=[1, 1, 1])], ArgumentError, r"must begin with \(0, weights\)"),
        (PARTS, [(0, [1, 1, 1]), (5, [1, 1])], ArgumentError, "has 2 numbers for 3 datasets"),
        (PARTS, [(0, [1, 1, 1]), (5, {})], ArgumentError, "are 0 for every dataset: {}"),
        (PARTS, [(0, [1, 1, 1]), (0, [1, 2, 1])], ArgumentError, "entry 1 begins at position 0, "),
        (
            PARTS,
            [(0, [1, 1, 1]), ramp(5, 20, to=[1, 2, 1]), (19, [1, 1, 1])],
            ArgumentError,
            "entry 2 begins at position 19, and the one before it needs those up to 20",
        ),
        (PARTS, [(0, [1, 1, 1]), 5], ArgumentTypeError, "entry 1 is 5"),
        (PARTS, [(0, [1, 1, 1]), (-1, [1, 1, 1])], ArgumentError, "position of entry 1"),
        (PARTS, [(0, 3)], ArgumentTypeError, "must be a list of numbers"),
        ({1: WEB}, None, ArgumentTypeError, "the name of a dataset"),
    ],
)  # fmt: skip
def test_weights_that_are_refused(datasets, weights, error, message):
    with pytest.raises(error, match=message):
        Dataset.mix(datasets, weights)


def test_a_ramp_from_the_beginning():
    mixed = Dataset.mix([WEB, CODE], [(0, [1, 0]), ramp(0, 40, to=[1, 1])])
    assert [mixed.plan(n).parts[1].rows for n in (10, 20, 40, 60)] == [0, 2, 10, 20]
    assert_same(list(mixed.batch(4)), oracle.elements(mixed.batch(4)))


def test_ramps_that_are_refused():
    with pytest.raises(ArgumentError, match="a ramp from 9 to 9: `stop` must be larger"):
        ramp(9, 9, to=[1, 2])
    with pytest.raises(
        ArgumentError, match="`shape` must be one of 'linear', 'cosine', got 'step'"
    ):
        ramp(0, 9, to=[1, 2], shape="step")


# Caps of epochs ---------------------------------------------------------------------------------


def test_the_others_go_on_after_a_cap():
    mixed = endless([1, 1, 1], epochs=None)
    capped = Dataset.mix(
        {"web": WEB.repeat(), "math": MATH.shuffle(1)}, epochs={"math": 3}, at_cap="redistribute"
    )
    came = numbers(capped.take(60))
    math = [x for x in came if x >= 2000]
    assert sorted(math) == sorted([*numbers(MATH)] * 3)
    assert math[:7] != math[7:14] != math[14:]
    assert max(i for i, x in enumerate(came) if x >= 2000) == 41
    plan = capped.plan(60)
    assert (plan["math"].epochs, plan["math"].cap_at) == (3.0, 43)
    assert plan["web"].cap_at is None
    assert capped.plan(10)["math"].cap_at == 43
    assert mixed.plan(9)["math"].cap_at is None


def test_a_mix_that_ends_with_a_cap():
    capped = Dataset.mix([WEB.repeat(), MATH], epochs={1: 3}, at_cap="stop")
    assert len(capped) == 43
    assert len(numbers(capped)) == 43
    both = Dataset.mix([CODE, MATH], epochs=2, at_cap="redistribute")
    assert sorted(numbers(both)) == sorted([*numbers(CODE), *numbers(MATH)] * 2)


def test_a_cap_that_would_be_passed():
    with pytest.raises(ChainError, match="'math' has given its 3 epochs before position 43 of the"):
        Dataset.mix({"web": WEB, "math": MATH}, epochs={"math": 3})
    assert len(Dataset.mix({"web": WEB.take(20), "math": MATH}, epochs={"math": 3})) == 40
    weights = [(0, [1, 1]), (30, [1, 0])]  # no more of it, before its cap
    assert len(Dataset.mix([WEB, MATH], weights, epochs={1: 3})) == 415
    with pytest.raises(
        ChainError, match="a stream, whose epochs have an unknown number of rows. Count them once"
    ):
        Dataset.mix([WEB, MATH.filter(everything)], epochs={1: 3})
    with pytest.raises(ChainError, match="`epochs` for '1', which is endless. Leave its .repeat"):
        Dataset.mix([WEB, MATH.filter(everything).repeat()], epochs={1: 3}, rows={1: 8})
    with pytest.raises(ChainError, match="`epochs` for '1', which is endless. Leave its .repeat"):
        Dataset.mix([WEB, MATH.repeat()], epochs={1: 3})
    with pytest.raises(
        ArgumentError, match="`epochs` has 'mat', which is none of the datasets: web"
    ):
        Dataset.mix(PARTS, epochs={"mat": 3})
    with pytest.raises(ArgumentError, match="must be at least 1, got 0"):
        Dataset.mix(PARTS, epochs={"math": 0})


# Lengths, and the leaf with the part ------------------------------------------------------------


def lists(n, length, path):
    rng = np.random.default_rng(0)
    rows = [{"t": np.arange(rng.integers(1, 2 * length), dtype=np.int32)} for _ in range(n)]
    Dataset.from_source(rows).save(path, engine="inline")
    return Dataset.open(path), sum(len(row["t"]) for row in rows) / n


def test_weights_that_count_tokens(tmp_path):
    (short, a), (long, b) = lists(200, 5, tmp_path / "a"), lists(100, 50, tmp_path / "b")
    parts = {"short": short.shuffle(1).repeat(), "long": long.repeat()}
    mixed = Dataset.mix(parts, {"short": 1, "long": 3}, count="t")
    plan = mixed.plan(10_000)
    assert plan["short"].share == pytest.approx(0.25, abs=0.001)
    assert plan["short"].rows == pytest.approx(10_000 * b / (b + 3 * a), abs=2)
    assert plan["long"].tokens == round(plan["long"].rows * b)
    tokens = {"short": 0, "long": 0}
    for record in mixed.take(plan["long"].rows):
        tokens["long" if len(record["t"]) > 9 else "short"] += len(record["t"])
    assert "tokens" in repr(plan)
    fixed = Dataset.from_arrays(t=np.zeros((30, 7)))
    assert Dataset.mix([fixed, fixed], [1, 2], count="t").plan(9).parts[0].tokens == 21


def test_lengths_that_are_not_known(tmp_path):
    ragged = Dataset.from_source([{"t": [1] * n} for n in range(1, 9)])
    with pytest.raises(ChainError, match="`count='t'` for '0': the lengths of this leaf are not"):
        Dataset.mix([ragged, ragged], count="t")
    with pytest.raises(ChainError, match="`count` for '1', a stream, .* Pack each dataset first"):
        stored, _ = lists(9, 5, tmp_path / "a")
        Dataset.mix([stored, ragged.filter(everything)], count="t")
    fixed = Dataset.from_arrays(t=np.zeros((30, 7)))
    with pytest.raises(ChainError, match="`count='u'` for '0'"):
        Dataset.mix([fixed, fixed], count="u")


@pytest.mark.parametrize("keep", [lambda d: d, lambda d: d.filter(everything)])
def test_a_leaf_that_names_the_part(keep):
    parts = {"a": keep(arrays(20)), "b": keep(arrays(20, 1000))}
    for batch in Dataset.mix(parts, [3, 1], part="part").batch(4):
        assert batch["part"].dtype == np.int32
        assert (batch["part"] == (batch["x"] >= 1000)).all()
    objects = Dataset.from_source([{"t": [0] * n} for n in range(4)])
    assert [r["part"] for r in Dataset.mix([objects, objects], part="part")] == [0, 1] * 4
    batches = Dataset.mix([arrays(8).batch(4), arrays(8, 1000).batch(4)], part="part")
    assert [batch["part"].tolist() for batch in batches] == [[0] * 4, [1] * 4] * 2


def test_elements_that_have_no_room_for_the_part():
    with pytest.raises(Exception, match="`part='part'`: an element is not a dict"):
        list(Dataset.mix([WEB, CODE], part="part"))
    with pytest.raises(Exception, match="`part='x'`: an element has that leaf already"):
        list(Dataset.mix([arrays(4), arrays(4)], part="x"))


# Plans ------------------------------------------------------------------------------------------


def test_a_plan_as_text():
    mixed = Dataset.mix(PARTS, [7, 2, 1], stop="repeat", epochs={"math": 4}, at_cap="redistribute")
    assert repr(mixed.plan(1_000)) == (
        "the first 542 elements of the mix\n"
        "name  rows   share  epochs  cap_at\n"
        "web    400  73.80%   1.000\n"
        "code   114  21.03%   1.267\n"
        "math    28   5.17%   4.000     289"
    )
    with pytest.raises(KeyError):
        mixed.plan(1)["none"]
    assert [part.name for part in Dataset.mix([WEB, CODE]).plan(0).parts] == ["0", "1"]


def test_what_has_no_plan():
    for dataset in (WEB, endless().filter(everything), endless()[3:], WEB.batch(4)):
        with pytest.raises(ChainError, match="plan needs a mix below this stage"):
            dataset.plan(3)


# States -----------------------------------------------------------------------------------------

OLD = [(0, [7, 2, 1]), (30, [1, 1, 1])]
LATER = {
    "another weight": [(0, [7, 2, 1]), (30, [1, 1, 1]), (48, [0, 1, 1])],
    "a ramp": [(0, [7, 2, 1]), (30, [1, 1, 1]), ramp(48, 99, to=[0, 1, 1])],
}
ABOVE = {
    "records": lambda dataset: dataset,
    "a window": lambda dataset: dataset.shuffle(3, window=8),
    "a map": lambda dataset: dataset.map(abs),
}


@pytest.mark.parametrize("new", LATER.values(), ids=LATER)
@pytest.mark.parametrize("above", ABOVE.values(), ids=ABOVE)
@pytest.mark.parametrize("make", [endless, streamed])
@pytest.mark.filterwarnings("error")
def test_weights_can_change_while_a_run_is_under_way(make, above, new):
    old, other = (
        above(make(weights)).batch(8, lanes=1 + (make is streamed)) for weights in (OLD, new)
    )
    whole = head(DataLoader(other), 30)
    for steps in range(1, 7):  # up to position 48
        iterator = iter(DataLoader(old))
        before = head(iterator, steps)
        continued = iter(DataLoader(other))
        continued.set_state(json.loads(json.dumps(iterator.get_state())))
        assert_same([*before, *head(continued, 30 - steps)], whole)


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("shuffled", [False, True])
def test_weights_below_a_stage_that_makes_the_stream(lanes, shuffled):
    """The mix is read by index, in units."""

    def packed(weights, start):
        later = [(0, [7, 2, 1]), (start, weights)]
        mixed = endless(later).map(lambda x: {"t": np.full(x % 3 + 1, x)})
        mixed = mixed.shuffle(1, window=20) if shuffled else mixed
        return mixed.pack({"t": 8}, window=40).batch(2, lanes=lanes)

    accepted = 0
    for start in (37, 80, 119, 120, 160, 200, 10_000):
        old, new = packed([1, 1, 1], start), packed([0, 1, 1], start)
        whole = head(DataLoader(new), 40)
        for steps in (0, 1, 7, 10, 14, 19):
            iterator = iter(DataLoader(old))
            before = head(iterator, steps)
            other = iter(DataLoader(new))
            refused = ""
            try:
                other.set_state(iterator.get_state())
            except StateError as error:
                refused = str(error)
            if refused:
                assert f"differ from position {start} of its elements on" in refused
                assert steps > 0
                continue
            accepted += 1
            assert_same([*before, *head(other, 40 - steps)], whole)
    assert accepted >= 20


@pytest.mark.parametrize("make", [endless, streamed])
def test_weights_cannot_change_in_the_past(make):
    iterator = iter(DataLoader(make(OLD).batch(8)))
    head(iterator, 7)
    other = iter(DataLoader(make(LATER["a ramp"]).batch(8)))
    message = "differ from .*position 48 of its elements on, and the state is at position 56"
    with pytest.raises(StateError, match=message):
        other.set_state(iterator.get_state())
    with pytest.warns(LoaderxWarning, match="differ from .*position 48 of its elements on"):
        other.set_state(iterator.get_state(), strict=False)
    rest = np.concatenate(head(other, 4))
    if make is streamed:  # every part goes on where it was
        given = [part.rows for part in make(OLD).plan(56).parts]
        assert [int(rest[rest // 1000 == c].min() % 1000) for c in (0, 1)] == given[:2]


def test_flat_weights_can_change_too():
    for make in (endless, streamed):
        iterator = iter(DataLoader(make([7, 2, 1]).batch(8)))
        before = head(iterator, 3)
        new = make([(0, [7, 2, 1]), (24, [1, 1, 0])]).batch(8)
        continued = iter(DataLoader(new))
        continued.set_state(iterator.get_state())
        assert_same([*before, *head(continued, 5)], head(DataLoader(new), 8))
        back = iter(DataLoader(make([7, 2, 1]).batch(8)))
        back.set_state(iterator.get_state())
        head(continued, 1)
        with pytest.raises(StateError, match="position 24 of its elements on"):
            back.set_state(continued.get_state())
        other = iter(DataLoader(make([(0, [7, 1, 1]), (24, [1, 1, 0])]).batch(8)))
        with pytest.raises(StateError, match=r"tickets was \[7, 2, 1\] and is \[7, 1, 1\] now"):
            other.set_state(iterator.get_state())


def test_a_shuffle_of_all_or_a_second_epoch_has_passed_every_position():
    def finite(weights, above):
        return above(Dataset.mix([WEB, CODE, MATH], weights, stop="repeat")).batch(8)

    for above in (lambda d: d.shuffle(1), lambda d: d.repeat()):
        iterator = iter(DataLoader(finite(OLD, above)))
        head(iterator, 90)
        new = [*OLD, (400, [3, 1, 1])]
        with pytest.raises(StateError, match="another chain"):
            iter(DataLoader(finite(new, above))).set_state(iterator.get_state())


def test_damaged_changes_are_refused():
    iterator = iter(DataLoader(endless(OLD).batch(8)))
    state = iterator.get_state()
    for changes in ("[[0]", "[[]]", "[7]", "{}", "[['a']]", "[" * 10_000):
        damaged = {
            **state,
            "chain": [s.replace("[[30, [1, 1, 1]]]", changes) for s in state["chain"]],
        }
        with pytest.raises(StateError):
            iterator.set_state(damaged)


def test_states_of_several_hosts_are_merged():
    weights, lanes = LATER["a ramp"], 4
    batched = streamed(weights).batch(8, lanes=lanes)
    hosts = [iter(DataLoader(streamed(OLD).batch(8, lanes=lanes), shard=(i, 2))) for i in range(2)]
    for host in hosts:
        head(host, 5)
    one = iter(DataLoader(batched))
    one.set_state(merge_states([host.get_state() for host in hosts]))
    assert_same(head(one, 9), list(itertools.islice(DataLoader(batched), 5, 14)))


# What came true ---------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [endless, streamed])
def test_what_came_of_a_mix_is_counted(make):
    loader = DataLoader(make().map(abs).batch(8))
    iterator = iter(loader)
    seen = np.concatenate(head(iterator, 20)) // 1000
    expected = {name: int((seen == c).sum()) for c, name in enumerate(PARTS)}
    stats = loader.stats(reset=True)
    assert stats.parts == stats.as_dict()["parts"] == expected
    assert f"rows of the mix: web {expected['web']} (" in str(stats)
    seen = np.concatenate(head(iterator, 5)) // 1000
    assert loader.stats().parts == {name: int((seen == c).sum()) for c, name in enumerate(PARTS)}
    assert loader.stats().parts["web"] == make().plan(200)["web"].rows - expected["web"]


def test_rows_are_counted_over_epochs_and_only_where_they_are_known():
    finite = Dataset.mix([CODE, MATH], [9, 1]).batch(4).repeat()
    loader = DataLoader(finite)
    seen = np.concatenate(head(loader, 60)) // 1000
    assert loader.stats().parts == {"0": int((seen == 1).sum()), "1": int((seen == 2).sum())}
    below = Dataset.mix([CODE, MATH]).repeat()
    for unknown in (endless().filter(everything), endless().shuffle(window=8), below, WEB):
        loader = DataLoader(unknown.batch(4))
        head(loader, 9)
        assert loader.stats().parts == {}
    many = Dataset.mix([Dataset.range(9)] * 20).batch(4)
    loader = DataLoader(many)
    list(loader)
    assert ", 11 9 (5.00%), 8 more" in str(loader.stats())


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("at_cap", ["redistribute", "stop"])
def test_caps_of_streams_whose_rows_were_counted(lanes, at_cap):
    """Three epochs of a filtered dataset, over all lanes; then the others go on, or it ends."""
    few = Dataset.range(1000, 1240).filter(is_even)
    with DataLoader(few) as loader:
        rows = loader.counts().rows
    assert rows == 120
    mix = Dataset.mix(
        {"many": Dataset.range(900).repeat(), "few": few},
        {"many": 2, "few": 1},
        epochs={"few": 3},
        at_cap=at_cap,
        rows={"few": rows},
    ).batch(8, lanes=lanes)
    found = np.concatenate(list(DataLoader(mix.take(200), engine="inline")))
    mine = found[found >= 1000]
    assert len(mine) == 3 * rows
    counts = np.bincount(mine - 1000)[::2]
    # A lane that reads faster than others is in the next epoch a little sooner.
    assert counts.sum() == 3 * rows
    assert np.abs(counts - 3).max() <= (lanes > 1)
    assert (counts == 3).mean() >= (1 if lanes == 1 else 0.8)
    plan = mix.plan(200)
    assert plan["few"].rows == 3 * rows
    assert plan["few"].epochs == 3.0
    assert len(found) == (1600 if at_cap == "redistribute" else plan["few"].cap_at)
    if lanes > 1:
        hosts = [
            list(DataLoader(mix.take(100), shard=(host, 2), engine="inline")) for host in range(2)
        ]
        joined = [np.concatenate(parts) for parts in zip(*hosts, strict=True)]
        assert np.array_equal(np.concatenate(joined), found[:800])


def is_even(x):
    return x % 2 == 0
