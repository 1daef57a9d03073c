"""Which class stands behind which method of a dataset.

Nodes derive from the datasets whose methods make them.  They sign in here, so that neither file
imports the other; their files are imported when the first of them is made.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TypeVar

from loaderx.compat.grain.protocols import Element

C = TypeVar("C", bound=Callable[..., Element])

HOMES = {
    "source": "source_nodes",
    "range": "source_nodes",
    "to_iter_dataset": "read_iterator",
    "map.batch": "batch_nodes",
    "map.concatenate": "join_nodes",
    "map.filter": "function_nodes",
    "map.flat_map": "function_nodes",
    "map.from_loaderx": "from_loaderx",
    "map.map": "function_nodes",
    "map.map_with_index": "function_nodes",
    "map.mix": "join_nodes",
    "map.random_map": "function_nodes",
    "map.repeat": "index_nodes",
    "map.seed": "index_nodes",
    "map.shuffle": "index_nodes",
    "map.slice": "index_nodes",
    "iter.batch": "iter_batch",
    "iter.filter": "iter_functions",
    "iter.flat_map": "iter_functions",
    "iter.from_loaderx": "from_loaderx",
    "iter.map": "iter_functions",
    "iter.map_with_index": "iter_functions",
    "iter.mix": "iter_mix",
    "iter.mp_prefetch": "process_prefetch",
    "iter.random_map": "iter_functions",
    "iter.seed": "iter_mix",
}
nodes: dict[str, Callable[..., Element]] = {}


def node(name: str) -> Callable[[C], C]:
    """Signs in a class, or a function that makes nodes, under a name."""

    def sign_in(made: C) -> C:
        nodes[name] = made
        return made

    return sign_in


def make(name: str, *args: Element, **kwargs: Element) -> Element:
    """A node by the name that its class has signed in under."""
    if name not in nodes:
        import_module(f"{__package__}.{HOMES[name]}")
    return nodes[name](*args, **kwargs)
