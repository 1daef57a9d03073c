"""Turns advice in messages, which is written for Python, into options of the command line."""

from __future__ import annotations

import re
from collections.abc import Container

_ARGUMENT = re.compile(
    r"`?\b(split|columns|format|cache|fill|decode)=('[^']*'|\[[^\]]*\]|\{[^}]*\}|True|False)?`?"
)
_ENCODED = re.compile(r"Dataset\.open\(\.\.\., decode=False\)|decode=False")


def in_options(text: str, has: Container[str]) -> str:
    """A message with the options of a command in place of arguments of `Dataset.open`.

    >>> in_options("choose one, split='train'.", {"split"})
    'choose one, --split train.'
    >>> in_options("Set fill={}.", ())
    'Set fill={}. (This command has no --fill: in Python write Dataset.open(..., fill=...).)'
    """
    missing: list[str] = []

    def option(found: re.Match[str]) -> str:
        name, value = found[1], found[2] or ""
        if name not in has:
            missing.append(name)
            return found[0]
        value = "a,b,c" if value == "[...]" else re.sub(r"[\[\]'\"]|(?<=,) ", "", value)
        return f"--{name} {value}".rstrip()

    if "decode" in has:  # without the option, files are left as they are
        text = _ENCODED.sub("the command without --decode", text)
    told = _ARGUMENT.sub(option, text)
    if not missing:
        return told
    name = missing[0]
    return f"{told} (This command has no --{name}: in Python write Dataset.open(..., {name}=...).)"
