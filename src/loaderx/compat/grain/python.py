"""``grain.python``: another name of the package itself."""

from loaderx.compat import grain

__all__ = grain.__all__


def __getattr__(name: str) -> object:
    return getattr(grain, name)


def __dir__() -> list[str]:
    return __all__
