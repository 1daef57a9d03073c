"""HTML for notebooks: no scripts, and everything that comes from data is escaped."""

from __future__ import annotations

import html
import os
from functools import cache


def tag(name: str, text: str, *inside: str, style: str = "") -> str:
    """An element with this text, which is escaped, and then other elements.

    >>> tag("td", "a < b", tag("b", "c"))
    '<td>a &lt; b<b>c</b></td>'
    """
    opened = f'{name} class="{style}"' if style else name
    return f"<{opened}>{html.escape(text)}{''.join(inside)}</{name}>"


def page(*inside: str) -> str:
    """What a notebook shows of an object."""
    return f'<div class="loaderx"><style>{_style()}</style>{"".join(inside)}</div>'


@cache
def _style() -> str:
    path = os.path.join(os.path.dirname(__file__), "style.css")
    with open(path, encoding="utf-8") as file:
        return file.read()
