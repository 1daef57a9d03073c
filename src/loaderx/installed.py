"""Detects files of another project: PyPI's ``loaderx`` installs into the same folder."""

from __future__ import annotations

import os

from loaderx.errors import warn_user

_THEIRS = "dataloader.py"  # a module of that project; this one has no such file


def problem() -> str | None:
    """What is wrong with the installation, and what to do; None if nothing is."""
    folder = os.path.dirname(os.path.abspath(__file__))
    # One look at a file takes microseconds; reading the metadata of packages takes far longer.
    if not os.path.exists(os.path.join(folder, _THEIRS)):
        return None
    return (
        f"{folder} also holds files of another package: PyPI's 'loaderx' is an unrelated project "
        "with the same import name, and each overwrites files of the other. Write: "
        "pip uninstall loaderx loaderx-jax, then install loaderx-jax again."
    )


def warn_if_mixed() -> None:
    text = problem()
    if text is not None:
        warn_user(text)
