"""Files of lines: JSON lines and plain text."""
