"""What `Dataset.open` does: which files, which format, which splits."""
