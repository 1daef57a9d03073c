"""Pinned streams: what every chain gave when it was recorded, it gives still."""
