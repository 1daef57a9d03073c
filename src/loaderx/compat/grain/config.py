"""A configuration that nothing reads: programs set it, and go on."""

from __future__ import annotations


class Config:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self._values: dict[str, object] = {}

    def update(self, name: str, value: object) -> None:
        """Sets a value, which has no effect."""
        self._values[name] = value

    def get_or_default(self, name: str) -> object:
        """A value that was set; False for all others."""
        return self._values.get(name, False)


config = Config()
