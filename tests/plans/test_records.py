"""Which records a step has, and which steps have a record."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chains import arrays, batched_chains, chains, quietly
from chunk_sources import Chunks
from loaderx import DataLoader, Dataset, LoaderxError, ramp
from loaderx.engines import Inline


def firsts(records):
    """The id of the first record of each row: the one that a zip in a chain keeps."""
    found = {}
    for row, record in zip(records.row.tolist(), records.read(), strict=True):
        found.setdefault(row, int(record["x"]))
    return [found[row] for row in sorted(found)]


def real_ids(element):
    ids = np.atleast_1d(element["x"])
    return ids[np.atleast_1d(element.get("mask", np.ones(len(ids), bool)))].tolist()


def steps_by_record(records_of, count):
    """For each record the steps that have it, by looking at all of them."""
    found = defaultdict(list)
    for step in range(count):
        records = records_of(step)
        for key in sorted(set(zip(records.part.tolist(), records.index.tolist(), strict=True))):
            found[key].append(step)
    return found


@settings(max_examples=100)
@given(chains())
def test_the_records_of_an_element_are_those_that_it_is_made_of(dataset):
    for number in range(len(dataset)):
        assert firsts(dataset.records(number)) == real_ids(dataset[number])


@settings(max_examples=100)
@given(chains(), st.data())
def test_the_elements_of_a_record_are_all_that_have_it(dataset, data):
    until = data.draw(st.sampled_from([None, len(dataset), len(dataset) // 2]))
    stop = len(dataset) if until is None else until
    expected = steps_by_record(dataset.records, stop)
    for part, index in list(expected)[:12]:
        found = dataset.steps_of(index, part=part, until=until)
        assert found.tolist() == expected[part, index]
    for part in {part for part, _ in expected}:
        several = [index for name, index in expected if name == part]
        found = dataset.steps_of(several, part=part, until=until)
        assert found.tolist() == sorted({s for i in several for s in expected[part, i]})


@settings(max_examples=40)
@given(batched_chains(), st.integers(1, 3))
def test_a_loader_counts_steps_through_all_epochs_and_hosts_have_their_rows(dataset, hosts):
    try:
        loaders = [DataLoader(dataset, engine=Inline(), shard=(h, hosts)) for h in range(hosts)]
    except LoaderxError:  # these batches cannot be shared
        return
    for host, loader in enumerate(loaders):
        count = 2 * len(loader)
        batches = [batch for epoch in range(2) for batch in quietly(loader.epoch, epoch)]
        for step, batch in enumerate(batches[:count]):
            assert firsts(loader.records(step)) == real_ids(batch)
        if host == hosts - 1:
            expected = steps_by_record(loader.records, count)
            for part, index in list(expected)[:5]:
                found = loader.steps_of(index, part=part, until=count)
                assert found.tolist() == expected[part, index]


SIZES = [9, 4, 11, 5, 7, 7, 2]
PLANNED = Dataset.mix(
    {
        "web": Dataset.mix({"a": arrays(300).shuffle(1), "b": arrays(50, 1000)}, [3, 1]).repeat(),
        "code": arrays(70, 2000).shuffle(block=8, window=16),
        "books": arrays(40, 3000).shuffle(),
    },
    [(0, {"web": 3, "code": 1}), ramp(200, 500, to={"web": 1, "code": 1, "books": 2})],
    stop="repeat",
)


def test_a_mix_of_mixes_with_weights_that_change():
    dataset = quietly(PLANNED.take(2000).shuffle(window=64).batch(16).shuffle().repeat, 2)
    expected = steps_by_record(dataset.records, len(dataset))
    assert {part for part, _ in expected} == {"web/a", "web/b", "code", "books"}
    for step in range(0, len(dataset), 17):
        assert firsts(dataset.records(step)) == real_ids(dataset[step])
    for part, index in list(expected)[::23]:
        assert dataset.steps_of(index, part=part).tolist() == expected[part, index]


def test_the_way_there_and_back_is_the_identity():
    mix = Dataset.mix(
        {
            "large": Dataset.range(10**9).shuffle(0),
            "blocks": Dataset.range(10**9, 2 * 10**9).shuffle(1, block=1000, window=10_000),
            "small": Dataset.range(2 * 10**9, 2 * 10**9 + 10**7).shuffle(2),
        },
        [5, 3, 1],
        stop="repeat",
    )
    dataset = mix.batch(512).shuffle(3)
    for step in np.random.default_rng(0).integers(0, len(dataset), 8).tolist():
        found = dataset.records(step)
        assert [int(record) for record in found.read()] == dataset[step].tolist()
        for part in np.unique(found.part):
            mine = found[found.part == part]
            steps = dataset.steps_of(mine.index, part=part)
            assert step in steps
            for other in steps[:: 1 + len(steps) // 5].tolist():
                there = dataset.records(other)
                assert np.isin(there.index[there.part == part], mine.index).any()


def test_read_and_run_through_the_functions_a_step_is_its_bytes():
    def double(record):
        return {**record, "y": record["y"] * 2}

    def total(batch):
        return {**batch, "sum": batch["x"] + batch["y"].sum(axis=1)}

    plain = Dataset.concatenate([arrays(100), arrays(30, 1000)]).shuffle(3).map(double)
    dataset = plain.batch(16).map(total).repeat(3)
    for step in (0, 5, 8, 20):
        made = [double(record) for record in dataset.records(step).read()]
        stacked = {name: np.stack([record[name] for record in made]) for name in ("x", "y")}
        batch = total(stacked)
        assert all(np.array_equal(batch[name], leaf) for name, leaf in dataset[step].items())


def test_epochs_are_counted_through_repeats_and_mixes():
    part = Dataset.range(3).shuffle(0)
    nested = part.repeat(2).repeat(3)
    assert [nested.records(n).epoch.tolist() for n in (0, 2, 3, 6, 17)] == [[0], [0], [1], [2], [5]]
    assert part.repeat().records(3 * 10**9 + 1).epoch.tolist() == [10**9]
    mix = Dataset.mix([Dataset.range(100, 110), part], [1, 1], stop="repeat")
    assert len(mix) == 20
    of_part = [int(mix.records(n).epoch[0]) for n in range(20) if mix.records(n).part[0] == "1"]
    assert of_part == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
    twice = mix.repeat(2)
    assert twice.records(20 + 19).epoch.tolist() == [4 + 3]
    assert DataLoader(part).records(3 * 7).epoch.tolist() == [7]


def test_a_row_of_a_zip_has_a_record_of_each_part():
    pair = {"image": arrays(20).shuffle(1), "text": arrays(20, 100).shuffle(2)}
    dataset = Dataset.zip(pair).batch(4)
    found = dataset.records(2)
    assert found.row.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert found.part.tolist() == ["image", "text"] * 4
    for name, base in (("image", 0), ("text", 100)):
        mine = found[found.part == name]
        assert (mine.index + base).tolist() == dataset[2][name]["x"].tolist()
        assert dataset.steps_of(int(mine.index[0]), part=name).tolist() == [2]


def test_blocks_of_a_source_and_draws_have_tables_per_epoch():
    chunked = Dataset.from_source(Chunks(SIZES)).shuffle(5, block="source", window=12)
    drawn = arrays(30).sample(np.arange(30.0), 50, seed=4)
    for dataset in (chunked.batch(4).repeat(3), drawn.batch(4).repeat(3)):
        expected = steps_by_record(dataset.records, len(dataset))
        for step in range(len(dataset)):
            assert firsts(dataset.records(step)) == real_ids(dataset[step])
        for part, index in expected:
            assert dataset.steps_of(index, part=part).tolist() == expected[part, index]
    assert drawn.steps_of(0).tolist() == []  # its weight is 0


def test_a_cache_and_a_guard_name_the_records_below_them():
    dataset = arrays(20).cache().on_error("replace").shuffle(1).batch(4)
    assert firsts(dataset.records(3)) == real_ids(dataset[3])
    assert dataset.steps_of(int(dataset[3]["x"][2])).tolist() == [3]


def test_files_are_named(tmp_path):
    for number in range(2):
        lines = "".join(f'{{"x": {10 * number + i}}}\n' for i in range(10))
        (tmp_path / f"part-{number}.jsonl").write_text(lines)
    dataset = Dataset.open(str(tmp_path / "*.jsonl"), cache=tmp_path / "cache").batch(10)[::-1]
    found = dataset.records(0)[3:5]
    assert found.file == [str(tmp_path / "part-1.jsonl")] * 2
    assert found.file_index == [3, 4]
    assert repr(found) == (
        "2 records\n"
        f"row  index  epoch  {'file'.rjust(len(found.file[0]))}  file_index\n"
        f"  3     13      0  {found.file[0]}           3\n"
        f"  4     14      0  {found.file[0]}           4"
    )


def test_a_table_is_short():
    shown = repr(arrays(50).batch(50).records(0)).splitlines()
    assert (shown[0], shown[1], len(shown)) == ("50 records", "row  index  epoch", 13)
    assert shown[-1] == "... and 40 more"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ds: ds.records(50), "there is no step 50: there are 5."),
        (lambda ds: ds.records(-1), "`n` must be at least 0, got -1."),
        (
            lambda ds: ds.steps_of(3),
            "`part` is needed: the dataset has the parts 'a', 'b', and an index numbers the "
            "records of one.",
        ),
        (
            lambda ds: ds.steps_of(3, part="c"),
            "there is no part 'c': the dataset has the parts 'a', 'b', and an index numbers the "
            "records of one.",
        ),
        (
            lambda ds: Dataset.range(9).steps_of(3, part="a"),
            "there is no part 'a': the dataset has no parts. Leave `part` out.",
        ),
        (
            lambda ds: ds.steps_of([1, 12], part="a"),
            "there is no record 12 of 'a': it has 12 records, numbered from 0.",
        ),
        (
            lambda ds: ds.steps_of(1.5, part="a"),
            "`index` must be the number of a record, or several of them, got 1.5.",
        ),
        (
            lambda ds: ds.repeat().steps_of(1, part="a"),
            "the dataset is endless: say where to stop looking, steps_of(index, until=step).",
        ),
        (
            lambda ds: DataLoader(ds.repeat()).steps_of(1, part="a"),
            "the dataset is endless: say where to stop looking, steps_of(index, until=step).",
        ),
    ],
)
def test_what_is_not_there_is_refused(call, message):
    dataset = Dataset.mix({"a": arrays(12), "b": arrays(8)}, [3, 2]).batch(4)
    assert len(dataset) == 5
    with pytest.raises(LoaderxError) as error:
        call(dataset)
    assert str(error.value) == message


def test_the_records_of_a_window_are_in_its_order():
    parts = [Dataset.from_arrays(x=np.arange(4) + 100 * part) for part in range(2)]
    windows = Dataset.mix(parts, [1, 1]).take(6).window(3).batch(2)
    for step in range(len(windows)):
        found = windows.records(step)
        assert [int(one["x"]) for one in found.read()] == windows[step]["x"].reshape(-1).tolist()
        assert found.row.tolist() == [0] * 3 + [1] * 3
