"""CSV and TSV files."""
