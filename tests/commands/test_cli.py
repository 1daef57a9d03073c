"""What all commands have in common."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys

import pytest

from loaderx import cli
from loaderx.commands import words
from loaderx.errors import LoaderxError
from processes import environment


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_has_examples_that_can_be_parsed(name, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main([name, "--help"])
    assert stopped.value.code == 0
    told = capsys.readouterr().out
    assert all(len(line) <= 80 for line in told.splitlines())
    examples = told.partition("\nexamples:\n")[2].partition("\n\n")[0].splitlines()
    assert examples
    for example in examples:
        words_of = shlex.split(example)
        end = next((n for n, word in enumerate(words_of) if word in ("|", ">")), None)
        assert words_of[0] == "loaderx"
        options = cli.command_parser().parse_args(words_of[1:end])
        assert isinstance(options, argparse.Namespace)
        assert options.command == name


def test_commands_are_sorted():
    assert list(cli.COMMANDS) == sorted(cli.COMMANDS)


def test_errors_of_the_system_are_one_line(monkeypatch, capsys, tmp_path):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", "secret.npy")

    monkeypatch.setattr("loaderx.commands.opening.recognise", refuse)
    assert cli.main(["info", str(tmp_path)]) == cli.UNUSABLE
    error = capsys.readouterr().err
    assert error == "loaderx info: [Errno 13] Permission denied: 'secret.npy'\n"


def test_errors_of_other_libraries_are_one_line(monkeypatch, capsys, tmp_path):
    def refuse(*_, **__):
        raise LoaderxError("it is damaged: type \x0f\nreading \x1b[31m failed.\n")

    monkeypatch.setattr("loaderx.commands.opening.recognise", refuse)
    assert cli.main(["info", str(tmp_path)]) == cli.UNUSABLE
    error = capsys.readouterr().err
    assert error == "loaderx info: it is damaged: type \\x0f reading \\x1b[31m failed.\n"


@pytest.mark.skipif(os.name == "nt", reason="there is no such shell")
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_outputs_that_are_closed(tmp_path, closed):
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n{\n')
    for command, code in (("verify x.jsonl", 1), ("head x.jsonl", 1), ("info nothing", 2)):
        done = subprocess.run(
            f"{shlex.quote(sys.executable)} -m loaderx {command} {closed}",
            shell=True,
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code
        assert "Traceback" not in done.stderr


def test_it_can_be_interrupted_while_commands_are_imported(monkeypatch):
    def interrupt(name):
        raise KeyboardInterrupt

    monkeypatch.setattr("loaderx.cli.import_module", interrupt)
    assert cli.main(["env"]) == cli.INTERRUPTED


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("choose one, split='train'.", "choose one, --split train."),
        ("fill={'a': ...}, or columns=[...]", "--fill a=..., or --columns a,b,c"),
        ("`columns` names 'x'", "--columns names 'x'"),
        ('open it with loaderx.sources.Csv(path, delimiter=";");', 'say --delimiter ";";'),
        ("say which with format=.", "say which with --format."),
        ("Give another folder with `cache=`", "Give another folder with --cache"),
        (
            "open it with loaderx.sources.Csv(path, header=False).",
            "open it in Python with loaderx.sources.Csv(path, header=False).",
        ),
        ("`path` is empty.", "the path is empty."),
        ("`step` must be at least 0", "--step must be at least 0"),
        ("nothing to say", "nothing to say"),
    ],
)
def test_advice_is_in_the_words_of_the_command_line(text, told):
    has = {"split", "columns", "fill", "format", "delimiter", "cache", "step"}
    assert words.in_options(text, has) == told
