"""Damaged and hostile headers of the `README.md` of a hub folder.  A target of `fuzz.py`.

Whatever a header says, records come from the files of its folder, or it is refused.  The folder
lies beside a file that no header may reach.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from fuzz_case import run_case
from fuzz_files import damaged
from fuzz_names import NAMES
from loaderx import Dataset, LoaderxError

FILES = {"data/train-0": 0, "data/train-1": 1, "data/test-0": 2, "en/a": 3, "b": 4}
OUTSIDE = 99
VALID = """configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*
  - split: test
    path:
    - data/test-*
- config_name: en
  data_files: "en/*"
"""
PATTERNS = (
    "data/*", "**", "**/*", "**/" * 30 + "*", "*" * 300, "[", "[!", "[a-", "{a,b}", "*.jsonl",
    "data/train-0.jsonl", "b.jsonl", "./b.jsonl", "data//*", "en/../../outside.jsonl", "?.jsonl",
    "../outside.jsonl", "*/../*", "/", "s3://b/*", "hf://datasets/a", "\n", " ", "a" * 5000, *NAMES,
)  # fmt: skip
PLAIN = ("train", "test", "default", "true", "no", "~", "null", "2024", "''", "en", "[train]")
ODD = (
    '"\\0"', '"\\ud800"', '"\\x7f"', "!!python/object/apply:os.system [id]", "!!binary aGk=",
    "!!int x", "!a b", "&", "*", "*gone", "'", '"', "|", ">-", "@", "`", "%", "? a", "<<", "---",
    "...", "\t", "a: b: c", "[", "{", "}", "- -",
)  # fmt: skip
KEYS = ("configs", "config_name", "data_files", "split", "path", "default", "train", "<<", "? [a]")
HOW_DEEP = (3, 90, 110, 1000, 200_000)


def check(seed: int) -> str:
    return run_case(seed, (_damaged, _drawn, _drawn, _deep, _aliases))


def _damaged(draw: random.Random, place: Path) -> str:
    """Some bytes of a valid file."""
    content, is_whole = damaged(draw, f"---\n{VALID}---\n# Some data\n".encode())
    return _read(draw, place, content, is_whole=is_whole)


def _drawn(draw: random.Random, place: Path) -> str:
    """A header of the usual keys, with values of all kinds."""
    lines = [f"configs:{draw.choice(['', ' # all', ' &a'])}"]
    for _ in range(draw.randint(1, 3)):
        lines.append(f"- config_name: {_scalar(draw)}")
        lines.append(f"  data_files: {_value(draw, 0)}")
    for _ in range(draw.choice([0, 0, 1, 2])):
        line = draw.choice([f"{draw.choice(KEYS)}: {_value(draw, 0)}", _scalar(draw)])
        lines.insert(draw.randint(0, len(lines)), line)
    return _read(draw, place, _header("\n".join(lines)))


def _value(draw: random.Random, depth: int) -> str:
    kind = draw.randrange(6) if depth < 3 else 0
    if kind == 4:
        return f"[{', '.join(_value(draw, depth + 1) for _ in range(draw.randint(0, 3)))}]"
    if kind == 5:
        pairs = (f"{draw.choice(KEYS)}: {_value(draw, depth + 1)}" for _ in range(3))
        return f"{{{', '.join(pairs)}}}"
    return json.dumps(draw.choice(PATTERNS)) if kind else _scalar(draw)


def _scalar(draw: random.Random) -> str:
    return draw.choice(PLAIN if draw.random() < 0.9 else ODD)


def _deep(draw: random.Random, place: Path) -> str:
    """Lists in lists, far more than any parser may follow by recursion."""
    depth = draw.choice(HOW_DEEP)
    opening, closing = draw.choice([("[", "]"), ("{a: ", "}"), ("- ", ""), ("? ", "")])
    rest = draw.choice(["", "x" + closing * depth])
    return _read(draw, place, _header(f"{VALID}more:\n  {opening * depth}{rest}"))


def _aliases(draw: random.Random, place: Path) -> str:
    """A short text that stands for a very long one, twice; or for one without an end."""
    lines = []
    for one in "xy":
        lines.append(f"{one}0: &{one}0 {{split: train, path: {json.dumps(draw.choice(PATTERNS))}}}")
        fan, levels = draw.choice([(2, 40), (9, 9), (3000, 1), (1, 3)])
        for level in range(levels):
            inner = ", ".join([f"*{one}{level}"] * fan)
            lines.append(f"{one}{level + 1}: &{one}{level + 1} [{inner}]")
    top = draw.choice(["x", "y"]) + str(draw.randint(0, levels))
    lines += [
        "configs: &c",
        f"- {{config_name: a, default: {draw.choice(['true', '*y1', 'no'])}, data_files: *{top}}}",
        f"- {{config_name: a, default: *x1, data_files: *{top[0]}{levels}}}",
        draw.choice(["- *c", "- <<: *x0", "- <<: *c", f"- data_files: [{'*x0, ' * 3000}]", "- {}"]),
    ]
    return _read(draw, place, _header("\n".join(lines)))


def _header(text: str) -> bytes:
    return f"---\n{text}\n---\n".encode("utf-8", "surrogatepass")


def _read(draw: random.Random, place: Path, content: bytes, *, is_whole: bool = False) -> str:
    folder = place / "x"
    for name, number in FILES.items():
        path = folder / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"n": number}) + "\n")
    (place / "outside.jsonl").write_text(json.dumps({"n": OUTSIDE}) + "\n")
    (folder / "README.md").write_bytes(content)
    split = draw.choice(["train", "test", "en.train", None])
    try:
        found = [record["n"] for record in Dataset.open(folder, split=split, cache=place / "cache")]
    except LoaderxError:
        assert not is_whole or split is None, "a valid header was refused"
        return "refused"
    expected = {"train": [0, 1], "test": [2], "en.train": [3]}
    assert set(found) <= set(FILES.values()), found
    assert not is_whole or found == expected[str(split)], found
    return "data"
