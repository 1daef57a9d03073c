"""Tests that start a library, and so cannot skip themselves, are not collected without it."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [] if find_spec("ray") else ["ray"]
