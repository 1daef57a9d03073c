"""The types of saved records: leaves by their paths, and which of them are images."""

from __future__ import annotations

from collections.abc import Sequence

from loaderx.errors import ArgumentError
from loaderx.sources.column_data import ColumnType


def leaf_at(kind: ColumnType, path: str) -> ColumnType | None:
    """The type of the leaf with this path, such as ``box.x``; None if there is none."""
    if not path:
        return None if kind.fields else kind
    for name, field in kind.fields.items() if kind.is_branch else ():
        if path == name:
            return field
        if path.startswith(f"{name}."):  # names may have dots in them
            found = leaf_at(field, path[len(name) + 1 :])
            if found is not None:
                return found
    return None


def check_images(kind: ColumnType, images: Sequence[str]) -> None:
    """Refuses names of leaves that are not bytes."""
    for path in images:
        leaf = leaf_at(kind, path)
        if leaf is None:
            raise ArgumentError(f"`images` names {path!r}, and records have {kind}.")
        if leaf.kind != "bytes":
            raise ArgumentError(
                f"`images` names {path!r}, which is {leaf}: the bytes of image files are expected. "
                "Open files with decode=False to get them."
            )


def with_images(kind: ColumnType, images: Sequence[str], path: str = "") -> ColumnType:
    """The type with these leaves as images."""
    if kind.is_branch:
        inside = f"{path}." if path else ""
        fields = {
            name: with_images(field, images, f"{inside}{name}")
            for name, field in kind.fields.items()
        }
        return kind.replace(fields=fields)
    return kind.replace(kind="image") if path in images and kind.kind == "bytes" else kind
