"""Every node is where the registry looks for it."""

from __future__ import annotations

from importlib import import_module

import pytest

from loaderx.compat.grain import registry


@pytest.mark.parametrize(("name", "home"), registry.HOMES.items())
def test_a_node_signs_in_under_its_name(name, home):
    module = import_module(f"loaderx.compat.grain.{home}")
    assert registry.nodes[name].__module__ == module.__name__
