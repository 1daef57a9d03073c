"""Numbers of bytes in environment variables."""

from __future__ import annotations

import pytest

from loaderx import ArgumentError
from loaderx.sources.byte_settings import bytes_setting

NAME = "LOADERX_TEST_BYTES"


@pytest.mark.parametrize(("given", "expected"), [("", 1 << 30), ("7", 7), ("0", 0)])
def test_what_is_set(given, expected, monkeypatch):
    monkeypatch.setenv(NAME, given)
    assert bytes_setting(NAME, 1 << 30, least=0) == expected


@pytest.mark.parametrize("given", ["0", "-3", "1 GB", "1e9"])
def test_what_is_wrong(given, monkeypatch):
    monkeypatch.setenv(NAME, given)
    with pytest.raises(ArgumentError) as caught:
        bytes_setting(NAME, 1 << 30)
    assert str(caught.value) == (
        f"LOADERX_TEST_BYTES is {given!r}, and must be a number of bytes, at least 1: 1073741824 "
        "is 1 GiB, the default."
    )
