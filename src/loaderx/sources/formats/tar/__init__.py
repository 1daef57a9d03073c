"""WebDataset: records in tar files."""
