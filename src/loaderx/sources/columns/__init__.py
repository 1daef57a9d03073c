"""From record numbers to values: columns over the parts of a dataset."""
