"""Small frozen records, described by their annotations like dataclasses.

`dataclasses` compiles several methods for every class at import; for forty classes that took
longer than all other imports.  This base class does the same work when a record is made.
"""

from __future__ import annotations

from typing import ClassVar, Self, dataclass_transform


@dataclass_transform(frozen_default=True, eq_default=False)
class Frozen:
    """The base: fields are the annotated names, in order; a field may have a default.

    A subclass checks its values in ``__post_init__``.  Records are compared by identity.
    """

    _fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        own = cls.__annotations__
        named = [name for name, kind in own.items() if not str(kind).startswith("ClassVar")]
        inherited = [name for base in cls.__mro__[:0:-1] for name in getattr(base, "_fields", ())]
        cls._fields = tuple(dict.fromkeys([*inherited, *named]))

    def __init__(self, *values: object, **named: object) -> None:
        fields = self._fields
        if len(values) > len(fields):
            raise TypeError(f"{type(self).__name__} takes {len(fields)} values, got {len(values)}.")
        given = {**dict(zip(fields, values, strict=False)), **named}
        for name in fields:
            if name in given:
                self.__dict__[name] = given.pop(name)
            elif not hasattr(type(self), name):
                raise TypeError(f"{type(self).__name__} needs a value for {name!r}.")
            else:
                self.__dict__[name] = getattr(type(self), name)
        if given:
            raise TypeError(f"{type(self).__name__} has no field {next(iter(given))!r}.")
        self.__post_init__()

    def __post_init__(self) -> None:
        """Checks the values."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a {type(self).__name__} is frozen; cannot set {name!r}.")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a {type(self).__name__} is frozen; cannot delete {name!r}.")

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._fields)
        return f"{type(self).__name__}({inner})"

    def replace(self, **changes: object) -> Self:
        """A copy with other values in some fields."""
        return type(self)(**{**{name: getattr(self, name) for name in self._fields}, **changes})
