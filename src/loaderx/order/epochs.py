"""Epoch keys, which make the second epoch of a dataset differ from the first."""

from __future__ import annotations

import numpy as np

from loaderx.rng import EPOCH, Keys, fold

Positions = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

LIMIT = 1 << 62  # positions are int64, with room for arithmetic


def wrap(epochs: Keys, positions: Positions, length: int, ordinal: int) -> tuple[Keys, Positions]:
    """Addresses inside a dataset of ``length`` that is repeated without end.

    The first epoch keeps its key, so that epoch 0 of a repetition is the dataset itself.
    ``ordinal`` tells this repetition from those below it.
    """
    if not positions.size:
        return epochs, positions
    first, last = int(positions.min()) // length, int(positions.max()) // length
    if first == last:
        return child(epochs, np.array([first]), ordinal), positions - first * length
    rounds = positions // length
    return child(epochs, rounds, ordinal), positions - rounds * length


def child(epochs: Keys, rounds: Positions, ordinal: int) -> Keys:
    """The key of round ``rounds`` of each epoch; round 0 is the epoch itself."""
    tag = EPOCH + (ordinal << 8)
    first, last = int(rounds.min()), int(rounds.max())
    if last == 0:
        return epochs
    if epochs.size == 1 and last - first < rounds.size:  # few rounds for many rows: hash each once
        table = _child(epochs, np.arange(first, last + 1), tag)
        return table[rounds - first] if rounds.size > 1 else table
    return _child(epochs, rounds, tag)


def _child(epochs: Keys, rounds: Positions, tag: int) -> Keys:
    return np.where(rounds == 0, epochs, fold(epochs, rounds, tag))
