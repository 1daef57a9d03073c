"""HTML for notebooks: no scripts, and everything that comes from data is escaped."""

from __future__ import annotations

import html
import os
from functools import cache

_EMPTY = ("img", "input")  # elements that hold nothing


def tag(name: str, text: str, /, *inside: str, style: str = "", **attributes: object) -> str:
    """An element with this text, which is escaped as its attributes are, and then other elements.

    ``style`` is its class.  Attributes that are None are left out.

    >>> tag("td", "a < b", tag("b", "c"))
    '<td>a &lt; b<b>c</b></td>'
    >>> tag("a", "next", style="link", href='?name="x"', title=None)
    '<a class="link" href="?name=&quot;x&quot;">next</a>'
    >>> tag("img", "", src="data:,")
    '<img src="data:,"/>'
    """
    given = {"class": style or None, **attributes}
    named = {key.replace("_", "-"): value for key, value in given.items() if value is not None}
    told = "".join(f' {key}="{html.escape(str(value))}"' for key, value in named.items())
    if name in _EMPTY:
        return f"<{name}{told}/>"
    return f"<{name}{told}>{html.escape(text)}{''.join(inside)}</{name}>"


def page(*inside: str) -> str:
    """What a notebook shows of an object."""
    return f'<div class="loaderx"><style>{_style()}</style>{"".join(inside)}</div>'


@cache
def _style() -> str:
    path = os.path.join(os.path.dirname(__file__), "style.css")
    with open(path, encoding="utf-8") as file:
        return file.read()
