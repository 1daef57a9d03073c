"""Checks of the object given to `Dataset.from_source`, with messages that say what to do."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sized

import numpy as np

from loaderx.errors import ArgumentError, ArgumentTypeError
from loaderx.sources.base import READERS, Source, overrides, takes_lend
from loaderx.tree import Array, ArraySpec, Tree, flatten

_GATHER = "gather(self, indices, lend), where `lend` may be left out"


def is_source(obj: object) -> bool:
    """True for a `Source`, or an object with the methods of one."""
    if isinstance(obj, Source):
        return True
    return all(callable(getattr(obj, name, None)) for name in ("gather", "records"))


def check_readable(obj: object) -> None:
    """Refuses objects without a length or an index, and objects meant for other methods."""
    kind = type(obj).__name__
    if isinstance(obj, type):
        raise ArgumentTypeError(
            f"a source is needed; got the class {obj.__name__}. Make an object of it: "
            f"Dataset.from_source({obj.__name__}(...))."
        )
    if isinstance(obj, Source):
        _check_subclass(obj)
        return
    can_read = "__getitem__" if not is_source(obj) else "gather"
    missing = [name for name in ("__len__", can_read) if not hasattr(obj, name)]
    if missing:
        hint = ""
        if callable(obj) or hasattr(obj, "__iter__"):
            hint = (
                " For data that can only be read from its beginning write "
                "Dataset.from_iterable(function), where the function returns a new iterator."
            )
        elif hasattr(obj, "gather") or hasattr(obj, "records"):
            hint = " Make it a subclass of loaderx.sources.Source, which has the rest."
        raise ArgumentTypeError(
            f"a source needs __len__ and __getitem__; {kind} has no "
            f"{' and no '.join(missing)}.{hint}"
        )
    if isinstance(obj, (str, bytes)):
        raise ArgumentTypeError(
            f"a source is needed; got the text {obj!r}. For a file write Dataset.open(path)."
        )
    if isinstance(obj, Mapping):
        raise ArgumentTypeError(
            f"a {kind} is not indexed by record. "
            "For a dict of arrays write Dataset.from_arrays(...)."
        )
    if type(obj) is tuple and _are_columns(obj):
        raise ArgumentTypeError(
            f"a tuple of {len(obj)} arrays would be {len(obj)} records. For the rows of all of "
            "them write Dataset.from_arrays((x, y)); if each array is a record, give a list."
        )


def _check_subclass(source: Source) -> None:
    kind = type(source).__name__
    if not overrides(source, "__len__"):
        raise ArgumentTypeError(f"{kind} has no length: add __len__(self), the number of records.")
    if not any(overrides(source, name) for name in READERS):
        raise ArgumentTypeError(
            f"{kind} has no method that reads. Add one of {_GATHER} (the records stacked), "
            "records(self, indices) (a list of records), or __getitem__(self, index) (one record)."
        )
    for name in (*READERS, "fetch", "label"):
        if not callable(getattr(source, name)):
            raise ArgumentTypeError(f"{kind}.{name} must be a method, not a property or a value.")
    if overrides(source, "fetch"):
        _check_fetch(source)


def _check_fetch(source: Source) -> None:
    """Checks the signature of ``fetch`` now, since errors of its calls are dropped."""
    try:
        signature = inspect.signature(source.fetch)
    except ValueError:  # a builtin without a signature
        return
    try:
        signature.bind(None)
    except TypeError:
        name = type(source).__name__
        listed = ", ".join(map(str, signature.parameters.values()))
        raise ArgumentTypeError(
            f"{name} has fetch({listed}); write fetch(self, indices)."
        ) from None


def _are_columns(arrays: tuple[object, ...]) -> bool:
    """True if they look like leaves of records: several arrays of one leading length."""
    shapes: list[tuple[int, ...]] = [getattr(array, "shape", ()) for array in arrays]
    return len(shapes) > 1 and all(shapes) and len({shape[0] for shape in shapes}) == 1


def checked_length(obj: Sized) -> int:
    """The number of records, at least one."""
    kind = type(obj).__name__
    try:
        length = len(obj)
    except (TypeError, ValueError, OverflowError) as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise  # from the object's own code
        raise ArgumentTypeError(
            f"__len__ of {kind} must return the number of records: {error}."
        ) from error
    if length == 0:
        raise ArgumentError(f"the dataset is empty: {kind} of length 0.")
    return length


def gather_takes_lend(obj: object) -> bool | None:
    """Whether its gather takes ``lend``; None: it has no usable gather."""
    if is_source(obj) and not getattr(obj, "gathers", True):
        return None
    gather = getattr(obj, "gather", None)
    if not callable(gather):
        return None
    try:
        return takes_lend(gather)
    except TypeError as error:
        if not is_source(obj):
            return None  # another library's method of that name
        raise ArgumentTypeError(f"{type(obj).__name__} has {error}; write {_GATHER}.") from None


def checked_thread_safe(obj: object) -> bool | None:
    """The ``thread_safe`` of the object; None if it has none."""
    kind = type(obj).__name__
    if isinstance(obj, Source) and not overrides(obj, "thread_safe"):
        return None
    value = getattr(obj, "thread_safe", None)
    if value is not None and not isinstance(value, (bool, np.bool_)):
        advice = ": put @property above it" if callable(value) else ""
        raise ArgumentTypeError(f"{kind}.thread_safe must be True or False, got {value!r}{advice}.")
    return None if value is None else bool(value)


def checked_spec(obj: object) -> Tree | None:
    """The spec of a source, or an error that says what is wrong with it."""
    kind, spec = type(obj).__name__, getattr(obj, "spec", None)
    if spec is None:
        return None
    if inspect.ismethod(spec):
        raise ArgumentTypeError(f"{kind}.spec is a method: put @property above it.")
    leaves, structure = flatten(spec)
    found = []
    for path, leaf in zip(structure.paths(), leaves, strict=True):
        if not isinstance(leaf, ArraySpec):
            where = f'leaf "{path}" of ' if path else ""
            raise ArgumentTypeError(
                f"{where}{kind}.spec is {leaf!r}; it must be an ArraySpec, such as "
                "loaderx.ArraySpec((28, 28), np.dtype(np.uint8))."
            )
        found.append(ArraySpec(tuple(leaf.shape), np.dtype(leaf.dtype)))
    return structure.build(found)


def checked_label(obj: object, default: str) -> str:
    """The label of a source in the ``repr``, checked."""
    label = obj.label() if hasattr(obj, "label") else default
    if not isinstance(label, str) or "\n" in label:
        raise ArgumentTypeError(
            f"{type(obj).__name__}.label() must return text of one line, got {label!r}."
        )
    return label


def check_rows(leaves: list[Array], count: int, what: str) -> None:
    """Refuses a batch that does not have one row for each record."""
    for leaf in leaves:
        if leaf.ndim == 0 or len(leaf) != count:
            raise ArgumentError(
                f"{what} was asked for {count} records and gave an array of shape {leaf.shape}."
            )


def refuse_sources(obj: object) -> None:
    """Raises for a path, and for a dict of datasets, such as the splits of one."""
    if isinstance(obj, (str, bytes, os.PathLike)):
        kind = "path" if isinstance(obj, os.PathLike) else "text"
        raise ArgumentTypeError(
            f"a source of records is needed; got the {kind} {os.fspath(obj)!r}. For a file write "
            "Dataset.open(path)."
        )
    if isinstance(obj, Mapping) and all(map(is_indexed, obj.values())) and obj:
        names = list(obj)
        shown = ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")
        raise ArgumentTypeError(
            f"this {type(obj).__name__} holds several datasets ({shown}). Choose one of them: "
            f"Dataset.from_source(d[{names[0]!r}])."
        )


def is_indexed(obj: object) -> bool:
    """True if it is read record by record, and is no array, list or dict."""
    is_array = hasattr(obj, "shape") and hasattr(obj, "dtype")
    if is_array or isinstance(obj, (str, bytes, list, tuple, Mapping)):
        return False
    return hasattr(obj, "__len__") and hasattr(obj, "__getitem__")
