"""`Dataset.open`: finds the files, the format and the splits of a path."""
