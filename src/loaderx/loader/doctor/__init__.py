"""Finds out whether a training loop waits for its data, why, and what to change."""
