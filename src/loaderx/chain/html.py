"""A chain as boxes, for notebooks."""

from __future__ import annotations

from collections.abc import Callable

from loaderx.chain.describe import count_text
from loaderx.chain.node import Node
from loaderx.display.html import page, tag
from loaderx.tree import flatten


def chain_page(node: Node, first_records: Callable[[], str]) -> str:
    """The ``_repr_html_`` of a dataset; ``first_records`` gives the HTML of a few of them.

    They are read only where that is cheap: a batch or a window may take minutes.
    """
    if node.batched or node.is_stream:
        leaves, structure = flatten(node.spec)
        rows = zip(structure.paths(), map(repr, leaves), strict=True)
        types = [tag("tr", "", tag("th", path), tag("td", spec)) for path, spec in rows]
        made = "batch" if node.batched else "record"
        note = tag("p", f".show() makes the first {made} and shows it", style="note")
        shown = tag("table", "", *types) + note
    else:
        try:
            shown = first_records()
        except Exception as error:  # an object must always be shown
            text = f"the first records cannot be read: {type(error).__name__}: {error}"
            shown = tag("p", text, style="note")
    return page(boxes(node), tag("p", count_text(node), style="note"), shown)


def boxes(node: Node) -> str:
    """The stages of a chain, those of joined datasets inside of their join."""
    first, *others = node.chain()
    inputs = [boxes(component) for component in first.inputs]
    made = [tag("div", first.stage, *inputs, style="stage")]
    made += [tag("div", stage.stage, style="stage") for stage in others]
    return tag("div", "", *made, style="chain")
