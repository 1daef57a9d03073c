"""What the pages of the viewer show."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from loaderx import DataLoader, Dataset
from loaderx.sources import Source
from viewing import ask, files, page, served, site, words

BAD = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"'><svg onload=alert(1)>",
    "</td></table><h1>out",
    "javascript:alert(1)",
    "&lt;b&gt;",
    "\x1b[31m\u202ex",
]
KNOWN = {
    "a", "aside", "b", "body", "button", "div", "form", "h1", "h2", "h3", "head", "header", "html",
    "img", "input", "label", "link", "main", "meta", "nav", "p", "pre", "rect", "script", "section",
    "span", "svg", "table", "tbody", "td", "th", "thead", "title", "tr",
}  # fmt: skip


class Strict(HTMLParser):
    """Every element is closed in its order, and none is known that could do harm."""

    def __init__(self):
        super().__init__()
        self.open, self.scripts = [], 0

    def handle_starttag(self, tag, attrs):
        assert tag in KNOWN, tag
        self.scripts += tag == "script"
        for name, value in attrs:
            assert not name.startswith("on"), name
            assert name != "style"
            if name in ("href", "src", "action"):
                assert re.match(r"data:|\./|\w+(\.css|\.js)?(\?|$)", value), value
        if tag not in ("meta", "link", "img", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def checked(text):
    parser = Strict()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    assert parser.scripts == 1  # viewer.js
    return text


def follow(server, most=60):
    """The pages that links lead to, from the first one on."""
    waiting, seen = [""], {}
    while waiting and len(seen) < most:
        place = waiting.pop(0)
        if place in seen:
            continue
        found = ask(server, f"/{server.token}/{place}")
        assert found.status == 200, (place, found)
        seen[place] = checked(found.text)
        links = re.findall(r'<a [^>]*href="([^"]*)"', found.text)
        waiting += [link.replace("&amp;", "&").removeprefix("./") for link in links]
    return seen


# Bad HTML ---------------------------------------------------------------------------------------


def test_bad_html_in_records_is_text():
    records = [{f"leaf {text}": text, "n": n} for n, text in enumerate(BAD)]
    whole = [{"text": text, BAD[0]: n, BAD[2]: text} for n, text in enumerate(BAD)]
    for dataset in (
        Dataset.from_source(records[:1] * 4),
        Dataset.from_source(whole),
        Dataset.from_source(whole).map(lambda r: {**r, BAD[1]: r["text"] * 2}).batch(3),
        Dataset.mix({BAD[0]: Dataset.from_source(whole), BAD[2]: Dataset.from_source(whole)}).batch(
            4
        ),
    ):
        with served(site(dataset)) as server:
            told = follow(server)
            assert len(told) > 4
            assert any(BAD[0] in words(one) for one in told.values())
            assert not any(
                re.search(r"<(script>|img src=x|svg onload)", one) for one in told.values()
            )


def test_bad_html_in_names_of_files_and_classes_is_text(tmp_path):
    for name in ("<img src=x onerror=alert(1)>", "\"'><b>", "plain"):
        folder = tmp_path / "<script>alert(1)<script>" / name
        folder.mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (20, 20), (9, 99, 80 * number)).save(folder / f"'\"<b>{number}.png")
    (tmp_path / "<script>alert(1)<script>" / "plain" / "'\"<b>1.png").write_bytes(b"<b>no image")
    with served(files(tmp_path / "<script>alert(1)<script>")) as server:
        told = follow(server)
        columns = words(told["columns"])
        assert "<img src=x onerror=alert(1)>" in columns
        assert "'\"<b>1.png: it is no image" in columns
    dataset = Dataset.open(tmp_path / "<script>alert(1)<script>").on_error("replace").batch(3)
    with served(site(dataset)) as server:
        told = follow(server)
        assert any("'\"<b>0.png" in words(one) for one in told.values())


def test_bad_html_in_errors_is_text():
    def refuse(record):
        raise ValueError(BAD[0])

    refuse.__name__ = BAD[1]
    for dataset in (Dataset.range(9).map(refuse), Dataset.range(9).map(refuse).batch(3)):
        with served(site(dataset)) as server:
            told = follow(server)
            assert BAD[0] in words(told[""])
            assert BAD[1] in words(told[""])


# Steps ------------------------------------------------------------------------------------------


def chain():
    images = np.arange(60 * 64, dtype=np.uint8).reshape(60, 8, 8)
    return (
        Dataset.from_arrays(image=images, label=np.arange(60))
        .shuffle(seed=0)
        .map(lambda r: {**r, "image": 255 - r["image"]})
        .random_map(lambda r, rng: {**r, "noise": rng.random()})
        .batch(8)
    )


def test_a_step_has_its_batch_and_its_records():
    loader = DataLoader(chain(), engine="inline")
    with served(site(loader)) as server:
        told = page(server, "?step=5")
        assert told.count("<img ") == 8
        shown = words(told)
        for index in loader.records(5).index:
            assert f" {index} " in shown
            assert f"label {index} " in shown
        assert "1 0 0" not in shown[:20]
        later = (
            words(page(server, "?step=13")) + " "
        )  # of the second epoch: `records` has it as well
        assert all(f" {index} 1 " in later for index in loader.records(13).index)


def test_the_slider_covers_all_steps():
    with served(site(chain())) as server:
        told = page(server, "?step=3")
        (slider,) = re.findall(r'<input type="range"[^>]*>', told)
        assert 'min="0"' in slider
        assert 'max="7"' in slider
        assert 'value="3"' in slider
        assert re.findall(r'href="([^"]*)" rel="(\w+)"', told) == [
            ("./?step=2", "prev"),
            ("./?step=4", "next"),
        ]
        assert "prev" not in page(server, "?step=0")
        assert "prev" in page(server, "?step=8")  # of the next epoch
        assert 'rel="next"' not in page(server, "record?record=59")
    with served(site(chain().repeat())) as server:
        told = page(server, "?step=3000000000")
        assert "range" not in told
        assert 'type="number"' in told
        assert 'href="./?step=3000000001" rel="next"' in told


def test_steps_without_a_batch_are_records():
    with served(site(Dataset.range(100).map(lambda x: x * 3), first=30)) as server:
        told = words(page(server))
        assert " 30 90 31 93 32 96 " in told
        assert " 53 159" in told
        assert " 54 " not in told
        assert " 99 297 100 0 101 3 " in words(page(server, "?step=90"))  # the next epoch


def test_skipped_steps_say_so():
    with served(site(Dataset.range(100).batch(4).skip_steps([(3, 5)]))) as server:
        assert "step 3 is skipped" in words(page(server, "?step=3"))
        assert " 20 21 22 23 " in re.sub(
            r"(?<= )\d (\d\d)(?= )", r"\1", words(page(server, "?step=5"))
        )


def test_packed_rows_are_in_colours():
    documents = Dataset.from_source([{"tokens": np.full(5 + i % 3, i)} for i in range(5)])
    with served(site(documents.pack({"tokens": 16}, window=20).batch(2))) as server:
        told = page(server)
        spans = re.findall(r'<span class="(s\d)" title="([\w ]+)">', told)
        assert spans[:2] == [("s1", "segment 0"), ("s2", "segment 1")]
        assert ("s0", "padding") in spans
        rows = re.findall(r'<div class="packed">(.*?)</div>', told)
        assert len(rows) == 2
        first = Dataset.head(documents.pack({"tokens": 16}, window=20).batch(2), 1)[0]["tokens"]
        shown = [int(one) for one in re.sub("<[^>]*>", " ", rows[0]).split()]
        assert shown == first[0].tolist()
        assert "length 5 to 7" in words(told)
        assert "segment_ids" not in told


def test_only_the_first_cells_of_long_rows_are_shown():
    long = Dataset.from_source([{"tokens": np.arange(3000), "text": "x" * 50_000}] * 4)
    tokens = long.map(lambda r: {"tokens": r["tokens"]}).pack({"tokens": 4096}, window=4)
    with served(site(tokens.batch(2))) as server:
        told = words(page(server))
        assert " 511 " in told
        assert " 512 " not in told
    with served(site(long)) as server:
        assert "49,488 more characters" in words(page(server))
        told = words(page(server, "record?record=1"))
        assert "30,000 more characters" in told
        assert " 511 \u2026" in told


def test_a_huge_dataset_is_opened_as_fast_as_a_small_one():
    class Counted(Source):
        def __init__(self, length):
            self.length, self.reads = length, 0

        def __len__(self):
            return self.length

        def __getitem__(self, index):
            self.reads += 1
            return {"x": index, "odd": index % 2}

    reads = []
    for length in (10**4, 10**9):
        source = Counted(length)
        with served(site(Dataset.from_source(source).shuffle(seed=0).batch(16))) as server:
            made = []
            for place in (
                "",
                f"?step={length // 16 - 1}",
                "stages?step=99",
                "records?record=9000",
                "columns",
            ):
                source.reads = 0
                page(server, place)
                made.append(source.reads)
            reads.append(made)
    assert reads[0] == reads[1]
    assert max(reads[1][:4]) <= 24
    assert reads[1][4] <= 600


# Failures ---------------------------------------------------------------------------------------


def unlucky(record):
    if record["n"] == 13:
        raise ValueError("unlucky")
    return {**record, "n": record["n"] * 2}


def test_a_step_that_cannot_be_made_is_in_nobodys_way():
    dataset = Dataset.from_source([{"n": n} for n in range(40)]).map(unlucky)
    with served(site(dataset.batch(4))) as server:
        told = words(page(server, "?step=3"))
        assert "map(unlucky) failed on record 13" in told
        assert "ValueError: unlucky" in told
        assert " 12 0 1 13 0 2 14 0 " in told  # what it is made of
        assert "unlucky" not in words(page(server, "?step=4")).replace("map(unlucky)", "")
        stages = words(page(server, "stages?step=3&record=1"))
        assert " source leaf value n 13 map(unlucky) " in stages
        assert "ValueError: unlucky" in stages
    with served(site(dataset)) as server:
        told = words(page(server, "?step=10"))
        assert " 12 24 14 28 " in told
        assert " 13 step 13: map(unlucky) failed" in told or " 13 map(unlucky) failed" in told


def test_a_record_of_files_that_cannot_be_read(tmp_path):
    lines = [json.dumps({"id": n}) for n in range(40)]
    lines[7] = '{"id": 7, <b>'
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    with served(files(tmp_path / "x.jsonl")) as server:
        told = words(page(server))
        assert " 6 6 8 8 " in told
        assert " 7 " in told
        assert "it is not JSON" in told
        assert "it is not JSON" in words(page(server, "record?record=7"))
        assert "1 cannot be read, such as record 7" in words(page(server, "columns"))


def test_a_column_that_must_be_filled(tmp_path):
    rows = [{"age": None if n == 2 else n, "name": f"n{n}"} for n in range(30)]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with served(files(tmp_path / "x.jsonl")) as server:
        assert " 2 missing n2 3 3 n3 " in words(page(server))
        assert "1 missing" in words(page(server, "columns"))
    with served(files(tmp_path / "x.jsonl", "--fill", "age=77")) as server:
        assert " 2 77 n2 " in words(page(server))


# Streams ----------------------------------------------------------------------------------------


def test_a_stream_forwards_and_backwards():
    dataset = Dataset.range(3000).shuffle(window=10, seed=0).filter(lambda x: x % 3 > 0).batch(4)
    batches = [batch.tolist() for batch in dataset]
    loader = DataLoader(dataset, engine="inline")
    with served(site(loader)) as server:
        for step in (0, 40, 39, 3, 200, 0, 33):
            told = words(page(server, f"?step={step}")) + " "
            assert all(f" {row} {value} " in told for row, value in enumerate(batches[step]))
            assert all(f" {row} {value} 0 " in told for row, value in enumerate(batches[step]))
        told = words(page(server, "?step=499"))
        assert "the steps before 290 are read: ask again" in told
        told = words(page(server, "stages?step=9999"))
        assert "the steps before 290 are read: ask again" in told
        assert f" 0 {batches[499][0]} " in words(page(server, "?step=499"))
        assert "there is no step 500: there are 500." in words(page(server, "?step=500"))
        assert f" 0 {batches[2][0]} " in words(page(server, "?step=2"))
        told = words(page(server, "stages?step=2&record=1"))
        assert "what each does to one of them is not known" in told
        assert f"source leaf value record {batches[2][1]}" in told or str(batches[2][1]) in told


def test_a_stream_of_records_that_fails():
    dataset = Dataset.range(30).filter(lambda x: 1 // (int(x) - 5) < 9)
    with served(site(dataset)) as server:
        told = words(page(server))
        assert "ZeroDivisionError" in told
        assert "ZeroDivisionError" in words(page(server, "?step=7"))


def test_an_iterable():
    dataset = Dataset.from_iterable(lambda: iter(range(50))).batch(4)
    with served(site(dataset)) as server:
        told = words(page(server, "?step=2"))
        assert " 0 8 1 9 2 10 3 11 " in told
        assert "records of Dataset.from_iterable are not known" in told
        assert "Source records" not in told
        assert ask(server, f"/{server.token}/records").status == 404
        checked(page(server))


# What the stages do -----------------------------------------------------------------------------


def test_the_stages_of_a_record():
    a = Dataset.from_arrays(x=np.arange(20), y=np.zeros(20)).shuffle(seed=1)
    b = Dataset.from_arrays(x=np.arange(100, 200), y=np.ones(100))
    dataset = (
        Dataset.mix({"a": a, "b": b}, stop="repeat")
        .map(lambda r: {"x": r["x"], "double": r["x"] * 2})
        .shuffle(seed=3)
        .batch(4)
        .map(lambda batch: {**batch, "x": -batch["x"]})
    )
    loader = DataLoader(dataset, engine="inline")
    found = loader.records(61)
    with served(site(loader)) as server:
        for number in range(4):
            told = words(page(server, f"stages?step=61&record={number}"))
            x = found.index[number] + (100 if found.part[number] == "b" else 0)
            assert f"source leaf value x {x} y " in told
            assert (
                f"map(<lambda>) leaf before after y {int(x >= 100)} double {2 * x} unchanged: x"
                in told
            )
            assert f"map(<lambda>) leaf before after x {x} -{x} unchanged: double" in told
            assert "batch(4)" in told
            assert ("shuffle(seed=1) moves it to place" in told) == (found.part[number] == "a")
            assert "shuffle(seed=3) moves it to place" in told


def test_files_have_no_stages(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with served(files(tmp_path)) as server:
        assert ask(server, f"/{server.token}/stages?step=0").status == 404


# Files ------------------------------------------------------------------------------------------


def test_images_of_several_splits(tmp_path):
    for split, count in (("train", 30), ("validation", 2)):
        for number in range(count):
            folder = tmp_path / split / ("cat" if number % 3 else "dog")
            folder.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (20, 20), (9, 99, 8 * number)).save(folder / f"{number}.png")
    with served(files(tmp_path)) as server:
        told = page(server)
        assert told.count("<img ") == 24
        assert "label cat" in words(told)
        assert page(server, "records?of=train&record=24").count("<img ") == 6
        assert page(server, "records?of=validation").count("<img ") == 2
        assert "uint8[20,20,3]" in words(page(server, "record?of=train&record=3"))
        columns = words(page(server, "columns?of=train"))
        assert "from all 30 records" in columns
        assert "cat 20 dog 10" in columns
        assert ask(server, f"/{server.token}/records?of=test").status == 404
    with served(files(tmp_path, "--split", "train[:10]", "--step", "8")) as server:
        told = page(server)
        assert told.count("<img ") == 2
        assert "of 10" in words(told)


def test_tuples_and_other_records():
    with served(site(Dataset.from_source([(n, {"deep": [n]}) for n in range(9)]))) as server:
        told = words(page(server, "records"))
        assert " 0 1.deep 0 0 [0] 1 1 [1] " in told
    with served(
        site(Dataset.from_source([{"b": b"xyz", "n": None, "f": float("nan")}] * 3))
    ) as server:
        assert "3 bytes missing nan" in words(page(server, "records"))


class Unreadable:
    def __repr__(self):
        raise ValueError("no text <b>")


def odd_datasets():
    draw = np.random.default_rng(0)
    pictures = {
        "image": draw.integers(0, 255, (6, 32, 32, 3), np.uint8),
        "mask": draw.integers(0, 4, (6, 32, 32)),
        "boxes": draw.integers(0, 30, (6, 2, 4)),
    }
    numbers = {
        "complex": draw.normal(size=5) + 1j,
        "day": np.arange(5).astype("datetime64[D]"),
        "deep": np.zeros((5, 3, 4, 5, 6), np.float16),
        "large": np.array([2**64 - 1, 0, 1, 2, 3], np.uint64),
        "not finite": np.array([np.nan, np.inf, 1, 2, -np.inf]),
        "flag": np.array([True] * 5),
    }
    ragged = Dataset.from_source([{"x": np.arange(n)} for n in range(6)])
    yield "pictures", Dataset.from_arrays(**pictures).batch(3)
    yield "sound", Dataset.from_arrays(audio=draw.normal(size=(6, 4000))).batch(3)
    yield "numbers", Dataset.from_arrays(**numbers).batch(2)
    yield "empty", ragged[:1].batch(1)
    yield "ragged", ragged
    yield "padded", ragged.batch(4, pad_to={"x": 9}, pad_remainder=True)
    yield "objects", Dataset.from_source([{"o": {"a": 1}, "l": [1, 2, "x"], "t": (1, 2)}] * 5)
    yield "collated", Dataset.range(9).batch(2, collate_fn=lambda rows: {"rows": len(rows)})
    yield "batched", ragged.map(lambda rows: {"n": [len(x) for x in rows["x"]]}, batched=True)
    yield "unbatched", Dataset.range(24).batch(4).map(lambda b: b * 2).unbatch().batch(3)
    yield "zipped", Dataset.zip((Dataset.range(9), Dataset.range(9).map(lambda x: x / 2))).batch(2)
    yield "removed", Dataset.range(20).map(lambda x: {"x": x}).without([3, 4], fill="mask").batch(4)
    yield "sampled", Dataset.range(9).sample(np.ones(9), 50, seed=1).batch(5)
    yield "cached", Dataset.range(9).cache().map_with_index(lambda i, x: {"i": i, "x": x}).batch(2)
    yield "flat", Dataset.range(9).flat_map(lambda x: [x, x + 1]).batch(4)
    yield "one", Dataset.range(1)


@pytest.mark.parametrize("dataset", [pytest.param(ds, id=name) for name, ds in odd_datasets()])
def test_all_kinds_of_data_are_shown(dataset):
    with served(site(dataset)) as server:
        told = follow(server, 12)
        assert not any("Error" in words(one) for one in told.values())


def test_what_has_no_text_is_named():
    with served(site(Dataset.from_source([{"x": Unreadable()}] * 4))) as server:
        told = words(page(server))
        assert "ValueError: no text <b>" in told
        assert "Source records" in told  # other pages can be reached


def test_images_that_only_some_records_have():
    image = np.arange(64, dtype=np.uint8).reshape(8, 8)
    records = [{"n": n, "image": image} if n % 2 else {"n": n} for n in range(6)]
    with served(site(Dataset.from_source(records))) as server:
        told = page(server)
        assert "<img " not in told  # else it would not be known whose they are
        assert " 2 2 missing 3 3 uint8[8,8] " in words(told)
        assert "<img " in page(server, "record?record=3")


def test_large_batches_show_their_first_rows():
    with served(site(Dataset.range(1000).map(lambda x: {"x": x}).batch(500))) as server:
        told = words(page(server))
        assert " 63 63 and 436 more rows In this batch x int64 \u00b7 0 to 499 " in told
        assert " 255 255 0 and 244 more" in told


def test_without_pillow_there_are_numbers(monkeypatch):
    for name in ("PIL", "PIL.Image", "PIL.ImageDraw", "PIL.ImageFont"):
        monkeypatch.setitem(sys.modules, name, None)
    with served(site(chain())) as server:
        told = words(page(server))
        assert "a picture of a batch needs Pillow: pip install" in told
        assert " 0 uint8[8,8] " in told
        assert "uint8[8,8] 0 " in words(page(server, "record?record=0"))
