"""How much memory a process may still use."""

from __future__ import annotations

import pytest

from loaderx.free_memory import free_memory


@pytest.mark.parametrize(
    ("memory", "limit", "expected"),
    [
        ("MemTotal: 9 kB\nMemAvailable:   4 kB\n", "max\n", 4096),
        ("MemTotal: 9 kB\nMemAvailable:   4 kB\n", None, 4096),
        ("MemTotal: 9 kB\nMemAvailable:   4 kB\n", "1000\n", 1000),
        ("MemTotal: 9 kB\nMemAvailable:   4 kB\n", "100000\n", 4096),
        ("MemTotal: 9 kB\n", "1000\n", None),
        (None, "1000\n", None),
    ],
)
def test_what_is_free_within_the_limit(tmp_path, memory, limit, expected):
    paths = tmp_path / "meminfo", tmp_path / "memory.max"
    for path, text in zip(paths, (memory, limit), strict=True):
        if text is not None:
            path.write_text(text)
    assert free_memory(*map(str, paths)) == expected
