"""Compiled datasets, read by step or, for streams, by unit."""
