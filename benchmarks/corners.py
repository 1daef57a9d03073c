"""Slow corners: unusual shapes of data and chains beside the plain loop, and how their cost grows.

    python benchmarks/corners.py [--quick] [--only NAME ...] [--json FILE]

The rows are in `corner_rows/`, a file for each kind; how they are measured is told in its
`__init__.py`.  A row is a `Corner` in the list ``CORNERS`` of its file.
"""

from __future__ import annotations

from corner_rows import files, joins, layouts, orders, records, workers
from figures import Figures, main

MODULES = (layouts, joins, records, orders, files, workers)

FIGURES: Figures = {corner.name: corner.rows for module in MODULES for corner in module.CORNERS}

if __name__ == "__main__":
    main(FIGURES, "the slow corners")
