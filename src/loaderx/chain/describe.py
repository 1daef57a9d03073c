"""A chain as text, one stage a line."""

from __future__ import annotations

from loaderx.chain.node import Node


def describe_chain(node: Node) -> str:
    """The ``repr`` of a dataset."""
    kind = "batches" if node.batched else "records"
    if node.is_stream:
        count = f"a stream of {kind}" if node.ends else f"an endless stream of {kind}"
    else:
        many = kind if node.length != 1 else kind.removesuffix("es" if node.batched else "s")
        count = f"endless {kind}" if node.length is None else f"{node.length:,} {many}"
    return "\n".join([*_lines(node), f"  # {count}"])


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
