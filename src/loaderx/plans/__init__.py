"""Compiled datasets: what to do for each step, or for each unit of a stream."""
