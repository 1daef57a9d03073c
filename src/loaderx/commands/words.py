"""Turns advice in messages, which is written for Python, into options of the command line."""

from __future__ import annotations

import re
from collections.abc import Container

_ARGUMENT = re.compile(
    r"`?\b(split|columns|format|cache|fill|decode|delimiter)="
    r"('[^']*'|\"[^\"]*\"|\[[^\]]*\]|\{[^}]*\}|True|False)?`?"
)
_CSV = re.compile(r"loaderx\.sources\.Csv\(path, (delimiter=\S+?)\)")
_FILL = re.compile(r"'?([^',{ ]+)'?: (\.\.\.|[^,}]+)")
_KEEP = re.compile(r" keep (?:it|them), missing='valid' or 'nan',")
_ONLY_PYTHON = re.compile(r"with (?=loaderx\.sources\.Csv\(path, )")
_NAME = re.compile(r"`(split|columns|format|cache|fill|delimiter|step)`")
_ENCODED = re.compile(r"Dataset\.open\(\.\.\., decode=False\)|decode=False")


def in_options(text: str, has: Container[str]) -> str:
    """A message with the options of a command in place of arguments of `Dataset.open`.

    >>> in_options("choose one, split='train'.", {"split"})
    'choose one, --split train.'
    >>> in_options("Fill it, fill={'age': ...}.", {"fill"})
    'Fill it, --fill age=....'
    >>> in_options("Fill it, fill={'a': ..., 'b': []}, or not.", {"fill"})
    'Fill it, --fill a=... --fill b=[], or not.'
    >>> in_options("Set cache=True.", ())
    'Set cache=True. (This command has no --cache: in Python write Dataset.open(..., cache=...).)'
    """
    missing: list[str] = []

    def option(found: re.Match[str]) -> str:
        name, value = found[1], found[2] or ""
        if name not in has:
            missing.append(name)
            return found[0]
        if name == "delimiter":  # the quotes are also those of a shell
            return f"--delimiter {value}"
        if name == "fill":
            return " ".join(f"--fill {a}={b}" for a, b in _FILL.findall(value)) or "--fill"
        value = "a,b,c" if value == "[...]" else re.sub(r"[\[\]'\"]|(?<=,) ", "", value)
        return f"--{name} {value}".rstrip()

    if "delimiter" in has:
        text = _CSV.sub(r"\1", text).replace("open it with delimiter", "say delimiter")
    text = _ONLY_PYTHON.sub("in Python with ", text).replace("`path`", "the path")
    if "decode" in has:  # without the option, files are left as they are
        text = _ENCODED.sub("the command without --decode", text)
    text = _NAME.sub(lambda found: f"--{found[1]}" if found[1] in has else found[0], text)
    told = _ARGUMENT.sub(option, _KEEP.sub("", text))
    if not missing:
        return told
    name = missing[0]
    return f"{told} (This command has no --{name}: in Python write Dataset.open(..., {name}=...).)"
