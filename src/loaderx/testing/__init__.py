"""Tests for what is added to loaderx from outside: subclass a contract, and run pytest.

`SourceContract` holds the tests of a source.  Nothing here imports pytest.
"""

from __future__ import annotations

from loaderx.testing.source_contract import SourceContract

__all__ = ["SourceContract"]
