"""The program of ``loaderx demo``.  This module is light; `loaderx.demo.train` imports jax."""

from pathlib import Path

DIGITS = Path(__file__).with_name("digits.npz")
"""1,797 handwritten digits, 8 x 8 pixels from 0 to 16: ``Dataset.open(DIGITS)``."""
