"""The splits in the README of a dataset from the hub."""

from __future__ import annotations

import sys

import pytest

from loaderx.errors import FileError, MissingPackageError
from loaderx.sources.format import Folder
from loaderx.sources.open.readme import readme_splits

FILES = (
    "data/train-00000-of-00002.parquet",
    "data/train-00001-of-00002.parquet",
    "data/test-00000-of-00001.parquet",
    "en/a-10.parquet",
    "en/a-2.parquet",
    "de/b.parquet",
    "extra.jsonl",
    ".cache/huggingface/data/train-9.parquet",
)

USUAL = """---
license: mit
dataset_info:
  features:
  - name: text
    dtype: string
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*
  - split: test
    path: data/test-*
task_categories:
- text-generation
---
# A dataset
configs:
- nothing
"""


@pytest.fixture
def folder(tmp_path):
    for file in FILES:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    return tmp_path


def found(folder, text):
    (folder / "README.md").write_text(text)
    splits = readme_splits(Folder(str(folder)), (".parquet",))
    start = len(str(folder)) + 1
    return {name: [file[start:] for file in files] for name, files in splits.items()}


def test_numbers_of_shards_behind_the_suffix(folder):
    (folder / "data" / "train.parquet-00000-of-00001").touch()
    text = USUAL.replace("train-*", "train.parquet-*")
    assert found(folder, text)["train"] == ["data/train.parquet-00000-of-00001"]


def test_the_usual_header(folder):
    expected = {"train": list(FILES[:2]), "test": [FILES[2]]}
    assert found(folder, USUAL) == expected
    assert found(folder, USUAL.replace("\n", "\r\n")) == expected
    indented = USUAL.replace("\n- config", "\n  - config").replace("\n  d", "\n    d")
    indented = indented.replace("\n  - split", "\n    - split").replace(
        "\n    path", "\n      path"
    )
    assert found(folder, indented) == expected


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ('data_files: "en/*.parquet"', {"train": ["en/a-2.parquet", "en/a-10.parquet"]}),
        ("data_files: en/*", {"train": ["en/a-2.parquet", "en/a-10.parquet"]}),
        ("data_files:\n  - en/a-2.parquet\n  - de/b.parquet", {"train": ["de/b.parquet", "en/a-2.parquet"]}),
        ("data_files: [en/a-2.parquet, 'de/b.parquet']", {"train": ["de/b.parquet", "en/a-2.parquet"]}),
        ("data_files:\n    train: en/*\n    dev: de/*", {"train": ["en/a-2.parquet", "en/a-10.parquet"], "dev": ["de/b.parquet"]}),
        ("data_files:\n  - split: x\n    path:\n    - en/a-2.parquet\n    - de/*", {"x": ["de/b.parquet", "en/a-2.parquet"]}),
        ("data_files:\n  - path: de/*\n    split: x", {"x": ["de/b.parquet"]}),
        ("data_files:\n  - split: gone\n    path: gone/*\n  - split: x\n    path: de/*", {"x": ["de/b.parquet"]}),
        ("data_files: ../*", {}),
        ("data_files: /etc/*", {}),
        ("data_files: https://example.org/a.parquet", {}),
        ("data_files: extra.jsonl", {}),
        ("data_dir: en", {}),
        ("data_files:\n  - split: bad/name\n    path: de/*", {}),
    ],
)  # fmt: skip
def test_other_forms(folder, told, expected):
    assert found(folder, f"---\nconfigs:\n- config_name: all\n  {told}\n---\n") == expected


def test_several_configurations(folder):
    text = "---\nconfigs:\n- config_name: en\n  data_files: en/*\n- config_name: de\n{}  data_files: de/*\n---\n"
    english = ["en/a-2.parquet", "en/a-10.parquet"]
    assert found(folder, text.format("")) == {"en.train": english, "de.train": ["de/b.parquet"]}
    for true in ("true", "True"):
        told = found(folder, text.format(f"  default: {true}\n"))
        assert told == {"en.train": english, "train": ["de/b.parquet"]}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# configs:",
        "---\nconfigs:\n",
        "---\nconfigs:\n---\n",
        "---\nconfigs:\n  a: b\n---\n",
        "---\nconfigs:\n- config_name\n---\n",
        "---\nconfigs:\n- - - -\n---\n",
        "---\n\x00\xff---\n",
    ],
)
def test_what_says_nothing(folder, text):
    assert found(folder, text) == {}


CONFIG = "---\nconfigs:\n- config_name: default\n  data_files:\n"


@pytest.mark.parametrize(
    "text",
    [
        CONFIG + '  - split: train\n    path: "data/train-*" # all\n  - split: test\n    path: data/test-*\n---\n',
        CONFIG.replace("configs:", "configs: # two splits") + "  - split: train\n    path: data/train-*\n  - split: test\n    path: data/test-*\n---\n",
        CONFIG + "    {train: data/train-*, test: data/test-*}\n---\n",
        CONFIG + "  - {split: train, path: data/train-*}\n  - {split: test, path: data/test-*}\n---\n",
        CONFIG + "  - split: train\n    path: [\n      data/train-*,\n      ]\n  - split: test\n    path: data/test-*\n---\n",
        CONFIG + "  - split: train\n    path: >-\n      data/train-*\n  - split: test\n    path: data/test-*\n---\n",
        CONFIG + "  - split: train\n    path: &all data/train-*\n  - split: test\n    path: data/test-*\n---\n",
        "---\nboth: &both\n  data_files:\n  - split: train\n    path: data/train-*\n  - split: test\n    path: data/test-*\n" + "configs:\n- <<: *both\n  config_name: default\n---\n",
        "---\n{configs: [{config_name: default, data_files: {train: data/train-*, test: data/test-*}}]}\n---\n",
    ],
)  # fmt: skip
def test_all_of_yaml_is_understood(folder, text):
    assert found(folder, text) == {"train": list(FILES[:2]), "test": [FILES[2]]}


@pytest.mark.parametrize(
    ("told", "line"),
    [
        ("- a: 'b", ""),
        ("    - a: b\n  - c: d", ": line 4, '- c: d'"),
        ("- data_files: *.parquet", r": line 3, '- data_files: \*.parquet'"),
        ("- data_files: {train: data/train-*", ""),
        ("- a: \x00", ""),
        ("".join(" " * n + "- a:\n" for n in range(2000)), ""),
    ],
)
def test_what_is_no_yaml_is_refused(folder, told, line):
    with pytest.raises(
        FileError, match=rf"README\.md: .* is not YAML{line}.* name the files of a split yourself"
    ):
        found(folder, f"---\nconfigs:\n{told}\n---\n")


@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
@pytest.mark.parametrize("depth", [101, 100_000])
def test_lists_in_too_many_lists_are_refused(folder, opening, depth):
    """PyYAML would end the process."""
    with pytest.raises(FileError, match=r"README\.md: .* has more than 100 lists in each other\."):
        found(folder, f"---\nconfigs:\n- {opening * depth}\n---\n")


def test_aliases_that_stand_for_more_than_fits_into_memory(folder):
    """Twice the same, so that comparing them would never end."""
    lines = [f"{one}0: &{one}0 [a]" for one in "xy"]
    for level in range(60):
        lines += [
            f"{one}{level + 1}: &{one}{level + 1} [*{one}{level}, *{one}{level}]" for one in "xy"
        ]
    text = "\n".join(lines)
    configs = "\n".join(
        f"- {{more: *{one}60, data_files: {files}}}"
        for one, files in (("x", "en/*"), ("y", "de/*"))
    )
    assert found(folder, f"---\n{text}\nconfigs:\n{configs}\n---\n") == {
        "train": ["en/a-2.parquet", "en/a-10.parquet", "de/b.parquet"]
    }


def test_too_many_patterns_are_refused(folder):
    """A thousand lists of a thousand."""
    files = f"files: &files {{split: train, path: [{'a, ' * 1000}]}}"
    text = f"---\n{files}\nconfigs:\n- data_files: [{'*files, ' * 1000}]\n---\n"
    with pytest.raises(FileError, match=r"README\.md: .* names more than 100,000 files\."):
        found(folder, text)


def test_names_are_texts(folder):
    text = "---\nconfigs:\n- config_name: no\n  data_files: en/*\n- config_name: 2024\n  data_files: de/*\n---\n"
    assert list(found(folder, text)) == ["no.train", "2024.train"]


def test_without_yaml(folder, monkeypatch):
    """A header that says nothing of files needs no package."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert found(folder, "---\nlicense: mit\n---\n") == {}
    with pytest.raises(MissingPackageError, match=r"PyYAML: pip install 'loaderx-jax\[hub\]'"):
        found(folder, USUAL)


def test_without_a_readme(folder):
    assert readme_splits(Folder(str(folder)), (".parquet",)) == {}
