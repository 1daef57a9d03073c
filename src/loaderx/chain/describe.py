"""A chain as text, one stage a line."""

from __future__ import annotations

from loaderx.chain.node import Node


def describe_chain(node: Node) -> str:
    """The ``repr`` of a dataset."""
    return "\n".join([*_lines(node), f"  # {count_text(node)}"])


def count_text(node: Node) -> str:
    """How many elements there are: "60,000 records"."""
    kind = "batches" if node.batched else "records"
    if node.is_stream:
        return f"a stream of {kind}" if node.ends else f"an endless stream of {kind}"
    many = kind if node.length != 1 else kind.removesuffix("es" if node.batched else "s")
    return f"endless {kind}" if node.length is None else f"{node.length:,} {many}"


def _lines(node: Node) -> list[str]:
    first, *others = node.chain()
    lines = [first.stage]
    for number, component in enumerate(first.inputs):
        head, *rest = _lines(component)
        lines += [f"  {number}: {head}", *(f"     {line}" for line in rest)]
    for stage in others:
        dot = "" if stage.stage.startswith("[") else "."
        lines.append(f"  {dot}{stage.stage}")
    return lines
