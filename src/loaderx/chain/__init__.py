"""The frozen description of a dataset: a chain of nodes, one per stage."""
