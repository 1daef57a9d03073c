"""Helpers for steps that workers share."""

from __future__ import annotations

from typing import Any

import pytest

from loaderx.loader.tasks import shared_steps
from loaderx.loader.tasks.shared_steps import SharedStepTasks


def share_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers share every step that they can, whatever it takes."""

    def is_shared(self: SharedStepTasks, _: object) -> bool:
        return self.session.window > 1

    monkeypatch.setattr(SharedStepTasks, "is_shared", is_shared)
    monkeypatch.setattr(shared_steps, "SHARED_S", 0.0)


def meet(path: Any, *, first: bool) -> None:
    """Returns when two processes are here at once, one of them as the first: opening a FIFO waits
    for its other end."""
    with open(path, "rb" if first else "wb"):
        pass
