"""The parts of `run.py`: what is measured, on which data, in which process, and how it is told."""
