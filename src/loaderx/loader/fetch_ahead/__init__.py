"""Fetches records behind URLs ahead of the stream."""
